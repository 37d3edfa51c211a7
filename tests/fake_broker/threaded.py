"""A fake cluster on its own thread, for clients that block the caller's.

Owns the thread and its loop. Must not touch the cluster from another thread: `call` does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.fake_broker.cluster import FakeCluster

_T = TypeVar("_T")


class ThreadedCluster:
    """Use as a context manager; `make` is called on the cluster's own loop."""

    cluster: FakeCluster

    def __init__(self, make: Callable[[], FakeCluster]) -> None:
        self._make = make
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-cluster")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self._start())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.run(self.cluster.__aexit__(kind, value, traceback))
        finally:
            self._stop_loop()

    async def _start(self) -> None:
        self.cluster = self._make()
        await self.cluster.__aenter__()

    @property
    def bootstrap_server(self) -> str:
        """As a running cluster of ours has it."""
        return self.cluster.bootstrap_servers

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float = 30.0) -> _T:
        """Run a coroutine on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    def call(self, function: Callable[[FakeCluster], _T]) -> _T:
        """Call a function with the cluster, on its loop."""

        async def called() -> _T:
            return function(self.cluster)

        return self.run(called())
