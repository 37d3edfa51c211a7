"""The controller's requests and the thread it lives on."""

from moldau.controller_server.apis import (
    CONTROLLER_APIS,
    ControllerApis,
    ControllerRequestContext,
)
from moldau.controller_server.quorum_node import (
    QuorumNode,
    RequestUndelivered,
    controller_endpoints,
)
from moldau.controller_server.quorum_thread import (
    LoopRelay,
    MetadataConsumer,
    QuorumBusy,
    QuorumThread,
)

__all__ = [
    "CONTROLLER_APIS",
    "ControllerApis",
    "ControllerRequestContext",
    "LoopRelay",
    "MetadataConsumer",
    "QuorumBusy",
    "QuorumNode",
    "QuorumThread",
    "RequestUndelivered",
    "controller_endpoints",
]
