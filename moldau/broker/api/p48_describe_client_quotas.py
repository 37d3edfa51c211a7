"""DescribeClientQuotas v0–v1: the client quotas that a filter matches, from this broker's image.

Behaviour: DESCRIBE_CONFIGS on the cluster is asked for. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p48_describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from moldau.runtime.slices import completed
from moldau.server.described_quotas import described_quotas
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    if not context.authorized_cluster(Operation.DESCRIBE_CONFIGS):
        return DescribeClientQuotasResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="describing client quotas is not allowed",
            entries=None,
        )
    quotas = services.metadata.image.client_quotas
    return await completed(services.clock, described_quotas(quotas, request))
