"""The throttle hook: what each request used, and how long its client should pause.

Usage is recorded once per request, before its response is built. The response carries the pause,
and the server does not read from the connection for that long (KIP-219).
"""

from __future__ import annotations


class Quotas:
    """Records usage by principal and client id; every answer is a throttle time in milliseconds.
    This one has no quotas: no client is throttled.
    """

    __slots__ = ()

    def record_produce(self, principal: str, client_id: str | None, size_bytes: int) -> int:
        """`size_bytes` of record batches came in."""
        return 0

    def record_fetch(self, principal: str, client_id: str | None, size_bytes: int) -> int:
        """`size_bytes` of record batches are about to go out."""
        return 0
