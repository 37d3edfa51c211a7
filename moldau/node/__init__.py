"""The composition root: the one place that joins `raft`, `controller` and `broker`."""

from moldau.node.node import Node, NodeStartError

__all__ = ["Node", "NodeStartError"]
