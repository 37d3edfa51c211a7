"""What any controller may tell, active or not, from the metadata it has replayed.

Owns: the answers to DescribeCluster (KIP-919) and DescribeConfigs on the controller
listener. Must not: change anything. Invariant: an answer is built from one image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from moldau.config import NodeConfig
from moldau.metadata.descriptions import DescribedEntries, described_acls, described_scram
from moldau.metadata.features import CONTROLLER_REGISTRATION_LEVEL
from moldau.metadata.image import MetadataImage
from moldau.metadata.steps import Steps
from moldau.protocol.access_control import Operation
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p29_describe_acls as p29
from moldau.protocol.messages import p32_describe_configs as p32
from moldau.protocol.messages import p50_describe_user_scram_credentials as p50
from moldau.protocol.messages import p60_describe_cluster as p60
from moldau.protocol.schema import Message
from moldau.server.config_permissions import config_problem
from moldau.server.request import Sender

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
        entries = DescribedEntries(request, self._config, image.configs)
        response = p32.DescribeConfigsResponse()
        operation, node_id = Operation.DESCRIBE_CONFIGS, self._config.node_id
        for resource in request.resources:
            problem = config_problem(
                context, operation, resource, image, node_id, has_loggers=False
            )
            response.results.append(entries.result(resource, problem))
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
