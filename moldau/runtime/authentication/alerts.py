"""The TLS alert that says why a handshake failed, which event loops drop with the connection.

asyncio and uvloop close a connection as soon as its handshake fails, before OpenSSL's alert has
left. A client of TLS 1.3 has then finished its own handshake, and would take a refusal for a fault
of the network. Owns the alert until the listener sends it. Invariant: what one handshake leaves is
seen by its own task alone.
"""

from __future__ import annotations

import ssl
from contextvars import ContextVar
from typing import Any


class Alert:
    """What a handshake leaves when it fails; `b""` when it has said all, or says nothing."""

    __slots__ = ("content", "outgoing")

    def __init__(self) -> None:
        self.content = b""
        self.outgoing: ssl.MemoryBIO | None = None


_alert: ContextVar[Alert] = ContextVar("alert")


def new_alert() -> Alert:
    """The place for the alert of the handshake that the running task begins."""
    alert = Alert()
    _alert.set(alert)
    return alert


class _AlertingObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            alert = _alert.get(None)
            if alert is not None and alert.outgoing is not None:
                alert.content = alert.outgoing.read()
            raise


class AlertingContext(ssl.SSLContext):
    """A context whose failed handshakes leave their alert."""

    sslobject_class = _AlertingObject

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any
    ) -> ssl.SSLObject:
        alert = _alert.get(None)
        if alert is not None:
            alert.outgoing = outgoing
        return super().wrap_bio(incoming, outgoing, *args, **options)
