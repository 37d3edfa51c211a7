"""The controller's listeners: sockets on the quorum's loop.

Owns: binding, closing, and the limits of connections. Must not: know what requests mean. Invariant:
requests are routed on the loop that `start` ran on, which is the quorum's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from moldau.controller.apis import ControllerApis
from moldau.controller.request_router import ControllerRequestRouter
from moldau.runtime.clock import Clock
from moldau.runtime.network import Network
from moldau.server.authorizer import Authorizer
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.server.outgoing import Offload
from moldau.server.server import ListenerSpec, RequestObserver, Server, ServerLimits

CLOSE_GRACE_MS: Final = 500.0
"""How long a stop waits for answers on their way; waiting fetches are ended before."""


class ControllerListener:
    """States: made → `start` → bound, requests wait → `open` → serving → `close`.

    Args:
        on_fault: told of an exception that no handler expected.
        limits: of connections and frames; the same keys as a broker's.
        observer: told of every answered request.
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
        observer: RequestObserver | None = None,
        offload: Offload | None = None,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self.router = ControllerRequestRouter(
            on_fault=on_fault, authorizer=authorizer, watchdog=watchdog
        )
        self._server = Server(
            self.router,
            clock=clock,
            network=network,
            limits=limits,
            observer=observer,
            offload=offload,
            watchdog=watchdog,
        )

    async def start(self, listeners: Iterable[ListenerSpec]) -> None:
        """Bind every listener. Raises OSError (nothing stays bound then)."""
        await self._server.start(listeners)

    def open(self, apis: ControllerApis) -> None:
        """Serve what came meanwhile, and everything from now on."""
        self.router.open(apis)

    def port(self, listener_name: str) -> int:
        """Where a listener is bound, for those configured with port 0."""
        return self._server.port(listener_name)

    @property
    def connection_count(self) -> int:
        """How many peers and clients are connected."""
        return self._server.connection_count

    async def close(self, graceful_ms: float = CLOSE_GRACE_MS) -> None:
        """Accept nothing more, end what runs, close the connections."""
        await self.router.close()
        await self._server.close(graceful_ms)
