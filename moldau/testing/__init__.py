"""A real broker for your tests: `Cluster` starts node processes, the pytest plugin brings fixtures.

    from moldau.testing import Cluster

    with Cluster() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_server})

Must not be imported by a running node. Names are imported when they are asked for, because every
run of pytest loads the plugin, and with it this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moldau.testing.cluster import Cluster, NodeFailed
    from moldau.testing.container import MoldauContainer
    from moldau.testing.waiting import wait_until, wait_until_async

__all__ = ["Cluster", "MoldauContainer", "NodeFailed", "wait_until", "wait_until_async"]

_MODULES: Final = {
    "Cluster": "moldau.testing.cluster",
    "MoldauContainer": "moldau.testing.container",
    "NodeFailed": "moldau.testing.node_process",
    "wait_until": "moldau.testing.waiting",
    "wait_until_async": "moldau.testing.waiting",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
