"""Nodes have names of their own and a node's rights: what a stolen certificate is good for."""

from __future__ import annotations
