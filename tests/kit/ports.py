"""Ports for servers that are no nodes of a `Cluster`.

Owns one holder for the whole process. Invariant: what it gave stays this process's own, also while
the server is not there yet or is down: no other process takes it, nor the kernel for a connection.
"""

from __future__ import annotations

import atexit

from moldau.local.layout import PortHolder

_HOLDER = PortHolder("127.0.0.1")
atexit.register(_HOLDER.close)


def free_ports(count: int) -> list[int]:
    """So many free ports."""
    return _HOLDER.take(count)


def free_port() -> int:
    """One free port."""
    return _HOLDER.take()[0]
