"""One TLS context, made again when a file of its stores changes on disk.

Owns the context that new connections get. Must not open or accept connections. Invariants: once
made there is always a context: however the making of another one fails, that is logged once for
each state of the files, and the last good context stays; what the machine is to blame for, not the
files' contents, is tried again; a connection keeps the context that it was opened with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from moldau.config.small_files import file_state
from moldau.runtime.authentication import SecuritySettingError, StoreUnreadable
from moldau.runtime.authentication.tls import Store, StoreContext
from moldau.runtime.fault_words import words_of

_Signature: TypeAlias = tuple[tuple[int, ...] | None, ...]

_OF_THE_MACHINE: Final = (StoreUnreadable, OSError, RuntimeError, MemoryError)
"""How the making of a context fails for want of files, memory or threads: another time may do."""

_LOG = logging.getLogger(__name__)


class StoreContexts:
    """The context of one listener, or of the connections to one, at a time.

    Args:
        make: a context from what the stores hold; blocks, raises SecuritySettingError.
        stores: whose files are watched.
        owner: for the log: "listener INTERNAL".
    """

    def __init__(
        self, make: Callable[[], StoreContext], stores: tuple[Store, ...], owner: str
    ) -> None:
        """Reads the stores. Raises: SecuritySettingError."""
        self._make = make
        self._paths = _paths(stores)
        self._owner = owner
        self._lock = asyncio.Lock()
        self._seen = _signature(self._paths)
        #: The state of the files that the last complaint was about.
        self._blamed: _Signature | None = None
        self._failures = 0
        self._context = make()

    @property
    def last(self) -> StoreContext:
        """The context that was made last, whatever the files hold now."""
        return self._context

    async def current(self) -> StoreContext:
        """The context for a new connection, from what the files hold now."""
        if _signature(self._paths) != self._seen:
            failures = self._failures
            async with self._lock:
                if self._failures == failures:  # else it has failed while this one waited
                    await self._reload()
        return self._context

    async def replace(
        self,
        make: Callable[[], StoreContext],
        stores: tuple[Store, ...],
        first: Callable[[], StoreContext] | None = None,
    ) -> bool:
        """Make contexts in another way, of other stores, from now on; False when that cannot be
        done: it is logged, and all stays as it is.

        Args:
            first: makes the first one, in place of `make`.
        """
        async with self._lock:
            paths = _paths(stores)
            seen = _signature(paths)
            try:
                context = await asyncio.to_thread(first or make)
            except (SecuritySettingError, *_OF_THE_MACHINE) as error:
                self._complain("the new settings", error)
                return False
            self._make, self._paths, self._seen, self._context = make, paths, seen, context
        _LOG.info("%s has new key and trust stores", self._owner)
        return True

    async def _reload(self) -> None:
        seen = _signature(self._paths)
        if seen == self._seen:
            return  # another connection has waited for the same change
        try:
            self._context = await asyncio.to_thread(self._make)
        except (SecuritySettingError, *_OF_THE_MACHINE) as error:
            self._failures += 1
            if self._blamed != seen:
                self._blamed = seen
                self._complain("the files that have changed", error)
            if isinstance(error, _OF_THE_MACHINE):
                return
        else:
            self._blamed = None
            _LOG.info("%s has read its key and trust stores again", self._owner)
        self._seen = seen

    def _complain(self, what: str, error: Exception) -> None:
        text = "%s keeps its certificate, %s cannot be used: %s"
        _LOG.error(text, self._owner, what, words_of(error))


def _paths(stores: tuple[Store, ...]) -> tuple[str, ...]:
    return tuple(store.location for store in stores if store.location is not None)


def _signature(paths: tuple[str, ...]) -> _Signature:
    return tuple(map(file_state, paths))
