"""The composition root: the one place that joins raft, metadata.controller and broker."""

from moldau.broker.node.node import Node, NodeStartError

__all__ = ["Node", "NodeStartError"]
