"""What any controller may tell, active or not, from the metadata it has replayed.

Owns: the answers to DescribeCluster (KIP-919) and DescribeConfigs on the controller
listener. Must not: change anything. Invariant: an answer is built from one image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from moldau.config import NodeConfig
from moldau.metadata.descriptions import (
    DescribedEntries,
    described_acls,
    described_scram,
    description,
)
from moldau.metadata.features import CONTROLLER_REGISTRATION_LEVEL
from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.metadata.steps import Steps
from moldau.protocol.access_control import Operation
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p29_describe_acls as p29
from moldau.protocol.messages import p32_describe_configs as p32
from moldau.protocol.messages import p50_describe_user_scram_credentials as p50
from moldau.protocol.messages import p60_describe_cluster as p60
from moldau.protocol.schema import Message
from moldau.protocol.types import topic_name_problem
from moldau.server.config_permissions import config_permission
from moldau.server.request import Sender
from moldau.text import short_name

BROKER_ENDPOINTS: Final = 1
CONTROLLER_ENDPOINTS: Final = 2


@dataclass(slots=True, eq=False)
class ClusterDescriptions:
    """Answers on the quorum's loop.

    Attributes:
        image: the committed metadata, as far as this node has replayed it.
        leader_id: the node that leads the quorum as far as known, else -1.
        kraft_version: the finalized `kraft.version`, which is not in the image.
    """

    _config: NodeConfig
    _cluster_id: str
    _: KW_ONLY
    image: Callable[[], MetadataImage]
    leader_id: Callable[[], int]
    kraft_version: Callable[[], int]

    def answer(self, request: Message, context: Sender) -> Steps[Message]:
        """The response to a request of an API whose row says DESCRIBED, in steps: by the method
        that has the name of the API.
        """
        steps: Steps[Message] = getattr(self, ApiKey(request.API_KEY).name.lower())(
            request, context
        )
        return steps

    def describe_acls(self, request: p29.DescribeAclsRequest, _context: Sender) -> Steps[Message]:
        return described_acls(self._config, self.image().acls, request)

    def describe_user_scram_credentials(
        self, request: p50.DescribeUserScramCredentialsRequest, _context: Sender
    ) -> Steps[Message]:
        return described_scram(self.image().scram, request)

    def describe_configs(
        self, request: p32.DescribeConfigsRequest, context: Sender
    ) -> Steps[Message]:
        image = self.image()
        entries = DescribedEntries(request)
        response = p32.DescribeConfigsResponse()
        for resource in request.resources:
            response.results.append(self._describe_resource(image, entries, resource, context))
            yield
        return response

    def describe_cluster(
        self, request: p60.DescribeClusterRequest, context: Sender
    ) -> Steps[Message]:
        """Controllers, by the addresses of the listener that was asked."""
        yield
        if request.endpoint_type == BROKER_ENDPOINTS:
            return p60.DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message="this is a controller's listener; it does not describe brokers",
            )
        if request.endpoint_type != CONTROLLER_ENDPOINTS:
            return p60.DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"endpoint type {request.endpoint_type} is unknown; 2 is controllers",
            )
        image = self.image()
        if image.features.metadata_level < CONTROLLER_REGISTRATION_LEVEL:
            return p60.DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                error_message="controllers do not register at this metadata.version",
            )
        controllers = image.cluster.controllers
        response = p60.DescribeClusterResponse(
            error_message=None,
            endpoint_type=CONTROLLER_ENDPOINTS,
            cluster_id=self._cluster_id,
            controller_id=self.leader_id(),
            brokers=[
                p60.DescribeClusterBroker(
                    broker_id=controller_id,
                    host=controllers[controller_id].listeners[context.listener_name].host,
                    port=controllers[controller_id].listeners[context.listener_name].port,
                )
                for controller_id in sorted(controllers)
                if context.listener_name in controllers[controller_id].listeners
            ],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = context.authorized_cluster_operations()
        return response

    def _describe_resource(
        self,
        image: MetadataImage,
        entries: DescribedEntries,
        resource: p32.DescribeConfigsResource,
        context: Sender,
    ) -> p32.DescribeConfigsResult:
        resource_type, name = resource.resource_type, resource.resource_name
        result = p32.DescribeConfigsResult(resource_type=resource_type, resource_name=name)
        error = config_permission(context, Operation.DESCRIBE_CONFIGS, resource_type, name)
        if error is not ErrorCode.NONE:
            result.error_code, result.error_message = error, "not allowed"
            return result
        # An empty list means all keys, as null does.
        keys = frozenset(resource.configuration_keys or ()) or None
        shown = short_name(name)
        if resource_type == ConfigResourceType.TOPIC:
            illegal = topic_name_problem(name)
            if illegal is not None:
                result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
                result.error_message = illegal
                return result
            if name not in image.topics.topics_by_name:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.error_message = f"there is no topic {shown}"
                return result
        elif resource_type == ConfigResourceType.BROKER:
            if name not in ("", str(self._config.node_id)):
                result.error_code = ErrorCode.INVALID_REQUEST
                result.error_message = (
                    f"this node answers for {self._config.node_id}, not for {shown!r}"
                )
                return result
        elif resource_type == ConfigResourceType.GROUP:
            if not name:
                result.error_code = ErrorCode.INVALID_REQUEST
                result.error_message = "a group's name is empty"
                return result
        else:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = (
                f"resource type {resource_type} is not served by controllers; 2 (topic), "
                "4 (broker) and 32 (group) are"
            )
            return result
        entries.fill(result, *description(self._config, image.configs, resource_type, name, keys))
        return result
