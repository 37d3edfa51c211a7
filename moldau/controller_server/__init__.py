"""The controller's requests and the thread it lives on."""

from moldau.controller_server.apis import (
    CONTROLLER_APIS,
    ControllerApis,
    QuorumRequests,
)
from moldau.controller_server.descriptions import ClusterDescriptions
from moldau.controller_server.listener import ControllerListener
from moldau.controller_server.quorum_node import (
    QuorumNode,
    RequestUndelivered,
)
from moldau.controller_server.quorum_settings import controller_endpoints
from moldau.controller_server.quorum_thread import (
    LoopRelay,
    MetadataConsumer,
    QuorumBusy,
    QuorumThread,
)
from moldau.controller_server.request_context import ControllerRequestContext

__all__ = [
    "CONTROLLER_APIS",
    "ClusterDescriptions",
    "ControllerApis",
    "ControllerListener",
    "ControllerRequestContext",
    "LoopRelay",
    "MetadataConsumer",
    "QuorumBusy",
    "QuorumNode",
    "QuorumRequests",
    "QuorumThread",
    "RequestUndelivered",
    "controller_endpoints",
]
