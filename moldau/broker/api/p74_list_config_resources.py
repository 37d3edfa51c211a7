"""ListConfigResources v0–v1 (KIP-1142): the names of everything that can carry dynamic
configuration.

Behaviour: v0 asks for client-metrics subscriptions only; v1 for any of topics, brokers, broker
loggers, client metrics and groups, an empty list meaning all; a type that does not exist answers
UNSUPPORTED_VERSION. Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p74_list_config_resources as p74
from moldau.server.request import RequestContext

ALL_TYPES: Final = tuple(kind for kind in ConfigResourceType if kind)


async def answer(
    services: BrokerServices, context: RequestContext, request: p74.ListConfigResourcesRequest
) -> p74.ListConfigResourcesResponse:
    if not context.authorized_cluster(Operation.DESCRIBE_CONFIGS):
        return p74.ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if context.api_version == 0:
        wanted: Iterable[int] = (ConfigResourceType.CLIENT_METRICS,)
    else:
        wanted = request.resource_types or ALL_TYPES
    if any(resource_type not in ALL_TYPES for resource_type in wanted):
        return p74.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = services.metadata.image
    return p74.ListConfigResourcesResponse(
        config_resources=[
            p74.ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in sorted(set(wanted))
            for name in _names(image, resource_type)
        ]
    )


def _names(image: MetadataImage, resource_type: int) -> list[str]:
    if resource_type == ConfigResourceType.TOPIC:
        return sorted(image.topics.topics_by_name)
    if resource_type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        return [str(broker_id) for broker_id in sorted(image.cluster.brokers)]
    return image.configs.names(resource_type)
