"""DescribeAcls v1–v3: the access control entries that a filter matches, from this broker's image.

Behaviour: DESCRIBE on the cluster is asked for; without an authorizer the answer is
SECURITY_DISABLED. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.metadata.descriptions import described_acls
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p29_describe_acls import DescribeAclsRequest, DescribeAclsResponse
from moldau.runtime.slices import completed
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices, context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    if not context.authorized_cluster(Operation.DESCRIBE):
        return DescribeAclsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="describing access control entries is not allowed",
        )
    acls = services.metadata.image.acls
    return await completed(services.clock, described_acls(services.node_config, acls, request))
