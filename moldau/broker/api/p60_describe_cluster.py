"""DescribeCluster v0–v2: the brokers of the cluster and its id.

Behaviour: endpoint type 1 (brokers) is answered by brokers; type 2 (controllers) belongs to the
controller listener and gets MISMATCHED_ENDPOINT_TYPE here; fenced brokers are listed from v2 on
when asked for.
Known gaps: none.
"""

from __future__ import annotations

from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p60_describe_cluster as p60
from moldau.server.request import RequestContext

BROKER_ENDPOINTS: Final = 1
CONTROLLER_ENDPOINTS: Final = 2


async def answer(
    services: BrokerServices, context: RequestContext, request: p60.DescribeClusterRequest
) -> p60.DescribeClusterResponse:
    if request.endpoint_type == CONTROLLER_ENDPOINTS:
        return p60.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker's listener; it does not describe controllers",
        )
    if request.endpoint_type != BROKER_ENDPOINTS:
        return p60.DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {request.endpoint_type} is unknown; 1 means brokers",
        )
    image = services.metadata.image
    brokers = []
    for broker_id, registration in sorted(image.cluster.brokers.items()):
        endpoint = registration.listeners.get(context.listener_name)
        if endpoint is None or (registration.fenced and not request.include_fenced_brokers):
            continue
        brokers.append(
            p60.DescribeClusterBroker(
                broker_id=broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=registration.rack,
                is_fenced=registration.fenced,
            )
        )
    response = p60.DescribeClusterResponse(
        endpoint_type=BROKER_ENDPOINTS,
        cluster_id=services.cluster_id,
        controller_id=services.metadata.controller_id_for_clients(),
        brokers=brokers,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.authorized_cluster_operations()
    return response
