"""Whether the disk under the metadata log has room.

Owns: the report that it has none, the probe that finds out when it has some again, the pause
between two probes. Must not: decide what a replica without room does (the quorum core does), or
touch the log's own files. Invariant: while room is lacking one probe is due or under way, and no
two of them are closer than `FIRST_PAUSE_MS`; each change of state is logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import is_out_of_room

logger = logging.getLogger(__name__)

FIRST_PAUSE_MS: Final = 1_000.0
MAX_PAUSE_MS: Final = 10_000.0
"""The pause doubles up to here while probes find no room."""
LASTING_MS: Final = 60_000.0
"""Room that is lost again within this time did not last: the pauses go on from where they were."""
PROBE_FILE: Final = "room-probe"
PROBE_BYTES: Final = 1024 * 1024
"""What a probe must be able to write. A disk with less is full to a leader: a few changes later it
would refuse again, after an election for nothing."""


@dataclass(eq=False, repr=False)
class RoomWatch:
    """States: has room -> lacks room -> has room, any number of times -> stopped.

    `on_room` is called when there is room again, `on_try` after every probe, for what has to be
    tried again whatever the probe found, `on_failure` when the disk refuses for another reason.
    """

    _filesystem: Filesystem
    _clock: Clock
    _directory: str
    _: KW_ONLY
    on_room: Callable[[], None]
    on_try: Callable[[], None]
    on_failure: Callable[[str], None]
    _pause_ms: float = FIRST_PAUSE_MS
    _regained_ms: float = float("-inf")
    _timer: TimerHandle | None = None
    _probe: asyncio.Task[None] | None = None
    _tried: asyncio.Event = field(default_factory=asyncio.Event)
    _is_stopped: bool = False
    is_lacking: bool = False

    def lost(self, reason: str) -> None:
        """A write found no room; `reason` is logged if that is news."""
        if self.is_lacking or self._is_stopped:
            return
        self.is_lacking = True
        if self._clock.monotonic_ms() - self._regained_ms > LASTING_MS:
            self._pause_ms = FIRST_PAUSE_MS
        logger.error(
            "no room for the metadata log, changes are refused here until there is: %s", reason
        )
        self._arm()

    async def next_try(self) -> None:
        """Wait until the next probe is over; at once when the watch has been stopped."""
        if not self._is_stopped:
            self._tried.clear()
            await self._tried.wait()

    def stop(self) -> None:
        """Probe no more, and let all go on that wait."""
        self._is_stopped = True
        self._tried.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def closed(self) -> None:
        """After `stop`: wait for the probe under way."""
        if self._probe is not None:
            await asyncio.wait([self._probe])

    def _arm(self) -> None:
        self._timer = self._clock.call_later(self._pause_ms, self._begin)
        self._pause_ms = min(self._pause_ms * 2, MAX_PAUSE_MS)

    def _begin(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        self._probe = loop.create_task(self._try(), name="metadata-room-probe")

    async def _try(self) -> None:
        path = os.path.join(self._directory, PROBE_FILE)
        try:
            await self._filesystem.offload(probe_room, self._filesystem, path)
        except OSError as error:
            if not is_out_of_room(error):
                self.on_failure(f"{path}: {error}")
            elif not self._is_stopped:
                self._arm()
        else:
            if not self._is_stopped:
                self.is_lacking = False
                self._regained_ms = self._clock.monotonic_ms()
                logger.info("there is room again for the metadata log")
                self.on_room()
        if not self._is_stopped:
            self._tried.set()
            self.on_try()


def probe_room(filesystem: Filesystem, path: str) -> None:
    """Write and remove a file of `PROBE_BYTES` at `path`. Blocks. Raises OSError."""
    try:
        file = filesystem.open(path, create=True)
        try:
            file.truncate(0)
            file.append(bytes(PROBE_BYTES))
            file.fsync()
        finally:
            file.close()
    finally:
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(path)
