"""DescribeUserScramCredentials v0: mechanisms and iterations of users, from this broker's image.

Behaviour: DESCRIBE on the cluster is asked for. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.metadata.descriptions import described_scram
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from moldau.runtime.slices import completed
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    if not context.authorized_cluster(Operation.DESCRIBE):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="describing SCRAM credentials is not allowed",
        )
    credentials = services.metadata.image.scram
    return await completed(services.clock, described_scram(credentials, request))
