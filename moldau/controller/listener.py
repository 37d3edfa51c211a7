"""The controller's listeners: sockets on the quorum's loop.

Owns: binding, closing, and the limits of connections. Must not: know what requests mean. Invariant:
requests are routed on the loop that `start` ran on, which is the quorum's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from moldau.controller.apis import ControllerApis
from moldau.runtime.clock import Clock
from moldau.runtime.network import Network
from moldau.server.authorizer import Authorizer
from moldau.server.connection_limits import ServerLimits
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.server.outgoing import Offload
from moldau.server.request_router import RequestRouter
from moldau.server.server import ListenerSpec, Server

CLOSE_GRACE_MS: Final = 500.0
"""How long a stop waits for answers on their way; waiting fetches are ended before."""


class ControllerListener:
    """States: made → `start` → bound, requests wait → `open` → serving → `close`.

    Args:
        on_fault: called with an exception that no handler expected.
        limits: of connections and frames; the same keys as a broker's.
        watchdog: of the loop, if it has one.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        on_fault: Callable[[BaseException], None],
        authorizer: Authorizer | None = None,
        network: Network | None = None,
        limits: ServerLimits | None = None,
        offload: Offload | None = None,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self._router: RequestRouter | None = None
        self._clock = clock
        self._on_fault = on_fault
        self._authorizer = authorizer or Authorizer()
        self._watchdog = watchdog
        self._decoded_max_bytes = (limits or ServerLimits()).decoded_max_bytes
        self._server = Server(
            clock=clock,
            network=network,
            limits=limits,
            offload=offload,
            watchdog=watchdog,
        )

    async def start(self, listeners: Iterable[ListenerSpec]) -> None:
        """Bind every listener. Raises OSError (nothing stays bound then)."""
        await self._server.start(listeners)

    async def add(self, listener: ListenerSpec) -> None:
        """Bind one more. Raises OSError."""
        await self._server.add_listener(listener)

    def open(self, apis: ControllerApis) -> None:
        """Serve what came early, and everything from now on."""
        self._router = RequestRouter(
            apis.routes(),
            clock=self._clock,
            authorizer=self._authorizer,
            on_fault=self._on_fault,
            watchdog=self._watchdog,
            decoded_max_bytes=self._decoded_max_bytes,
        )
        self._server.open(self._router)

    def port(self, listener_name: str) -> int:
        """Where a listener is bound, for those configured with port 0."""
        return self._server.port(listener_name)

    async def close(self, graceful_ms: float = CLOSE_GRACE_MS) -> None:
        """Accept nothing more, end what runs (fetches may wait long), close the connections."""
        if self._router is not None:
            await self._router.close(cancels=True)
        await self._server.close(graceful_ms)
