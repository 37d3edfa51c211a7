"""What the console shows of the node that serves it; on the HTTP thread.

Must not import the console before it asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau import __version__
from moldau.broker.api.services import BrokerServices
from moldau.broker.replica.topic_stats import METRIC_PREFIX
from moldau.runtime.loop_thread import call_on
from moldau.runtime.telemetry.metrics import Counter, Registry
from moldau.server.request import REQUEST_METRICS
from moldau.server.server import Server

if TYPE_CHECKING:
    from moldau.console.figures import NodeFigures

TIMEOUT_S: Final = 2.0
_BYTES_IN, _BYTES_OUT = f"{METRIC_PREFIX}BytesInPerSec", f"{METRIC_PREFIX}BytesOutPerSec"
_MESSAGES_IN: Final = f"{METRIC_PREFIX}MessagesInPerSec"
_REQUESTS: Final = f"{REQUEST_METRICS}RequestsPerSec"


class _Copied(NamedTuple):
    """What was copied on the data loop, and when."""

    at_s: float
    connections: int
    bytes_in: int
    bytes_out: int
    messages_in: int
    requests: int


@dataclass(frozen=True, slots=True)
class FiguresOfNode:
    """Asks the node; None while it starts or stops, or is too busy to answer.

    Args:
        services, server: give the broker and its listeners; None before they exist.
        registry: the metrics, looked at on the data loop.
    """

    services: Callable[[], BrokerServices | None]
    server: Callable[[], Server | None]
    registry: Registry
    data_loop: asyncio.AbstractEventLoop

    async def __call__(self) -> NodeFigures | None:
        from moldau.console.figures import NodeFigures, Traffic

        services, server = self.services(), self.server()
        if services is None or server is None:
            return None
        asked_s = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                copied = await call_on(self.data_loop, _copied, self.registry, server)
        except TimeoutError:
            return None
        brokers = services.metadata.image.cluster.brokers
        return NodeFigures(
            services.broker_id,
            f"moldau {__version__}",
            copied.connections,
            (copied.at_s - asked_s) * 1000,
            {
                broker_id: [
                    f"{name}://{endpoint.host}:{endpoint.port}"
                    for name, endpoint in sorted(registration.listeners.items())
                ]
                for broker_id, registration in brokers.items()
            },
            Traffic(copied.bytes_in, copied.bytes_out, copied.messages_in, copied.requests),
        )


def _copied(registry: Registry, server: Server) -> _Copied:
    """Copy a few numbers; short, for the data loop."""
    return _Copied(
        time.monotonic(),
        len(server.connections),
        registry.meter(_BYTES_IN).count,
        registry.meter(_BYTES_OUT).count,
        registry.meter(_MESSAGES_IN).count,
        sum(each.value for each in registry.series(_REQUESTS) if isinstance(each, Counter)),
    )
