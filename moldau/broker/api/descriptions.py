"""DescribeAcls v1–v3 and DescribeUserScramCredentials v0: the access control entries that a filter
matches, and the mechanisms and iterations of users, from this broker's image.

Behaviour: DESCRIBE on the cluster is asked for; without an authorizer the answer about entries is
SECURITY_DISABLED. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.metadata.descriptions import described_acls, described_scram
from moldau.protocol.access_control import Operation
from moldau.protocol.error_responses import error_response
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p29_describe_acls import DescribeAclsRequest
from moldau.protocol.messages.p50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from moldau.protocol.schema import Message
from moldau.runtime.slices import completed
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices,
    context: RequestContext,
    request: DescribeAclsRequest | DescribeUserScramCredentialsRequest,
) -> Message:
    if not context.authorized_cluster(Operation.DESCRIBE):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return error_response(request, error, "describing what concerns security is not allowed")
    image = services.metadata.image
    if isinstance(request, DescribeAclsRequest):
        described = described_acls(services.node_config, image.acls, request)
        return await completed(services.clock, described)
    return await completed(services.clock, described_scram(image.scram, request))
