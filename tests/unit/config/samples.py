"""A minimal valid node, to vary in tests."""

from __future__ import annotations

from moldau.config import NodeConfig

MINIMAL = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "log.dirs": "data",
}


def node(**changes: str | None) -> NodeConfig:
    """A node with some keys changed; `_` in a name stands for a dot, None removes the key."""
    return node_with({name.replace("_", "."): text for name, text in changes.items()})


def node_with(changes: dict[str, str | None]) -> NodeConfig:
    """A node with some keys changed; None removes the key."""
    merged = {**MINIMAL, **changes}
    return NodeConfig({name: text for name, text in merged.items() if text is not None})
