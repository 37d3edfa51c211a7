"""Where logs are cleaned: the port, and its forms in this process and in a child process.

Owns: `CleanerWorker` and `CleaningRun`; `InlineWorker`, for simulations and unit tests, which works
through `Filesystem.offload`; `ProcessWorker`, so that no work on records delays the broker.
Must not: swap files in, choose, read or write logs.
Invariant: events come in order; after `abort` no further one comes, and the run writes no file that
it has not begun. A `ProcessWorker` has at most one child; an aborted run's child is not used again.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Iterator
from typing import Final, Protocol

from moldau.runtime.child_process import ChildLost, ChildProcess
from moldau.runtime.filesystem import Filesystem
from moldau.storage.cleaner.cleaning import clean
from moldau.storage.cleaner.job import (
    CleaningAborted,
    CleaningDone,
    CleaningEvent,
    CleaningFailed,
    CleaningJob,
    decode_event,
    encode_job,
)
from moldau.storage.cleaner.offset_map import SEED_BYTES


class CleaningRun(Protocol):
    """A running cleaning."""

    async def next_event(self) -> CleaningEvent:
        """The next event; the last one is CleaningDone. Raises: CleaningFailed."""

    def abort(self) -> None:
        """Stop it; a pending `next_event` raises CleaningFailed. Idempotent."""


class CleanerWorker(Protocol):
    """Cleans one log at a time."""

    async def start(self, job: CleaningJob) -> CleaningRun:
        """Begin, after the previous run has ended. Raises: CleaningFailed."""

    async def rest(self) -> None:
        """Give memory back until the next `start`."""


class InlineWorker:
    """Works in the file system's threads; a simulation runs these inline."""

    def __init__(self, filesystem: Filesystem, random: random_module.Random) -> None:
        self._filesystem = filesystem
        self._random = random

    async def start(self, job: CleaningJob) -> CleaningRun:
        seed = self._random.randbytes(SEED_BYTES)
        return _InlineRun(self._filesystem, clean(self._filesystem, job, seed=seed))

    async def rest(self) -> None:
        """Nothing to give back: no memory is held between runs."""


class _InlineRun:
    def __init__(self, filesystem: Filesystem, events: Iterator[CleaningEvent]) -> None:
        self._filesystem = filesystem
        self._events = events
        self._is_aborted = False

    async def next_event(self) -> CleaningEvent:
        if self._is_aborted:
            raise CleaningAborted("aborted")
        event = await self._filesystem.offload(next, self._events)
        if self._is_aborted:
            raise CleaningAborted("aborted")
        return event

    def abort(self) -> None:
        self._is_aborted = True


CHILD: Final = "moldau.storage.cleaner.child"


class ProcessWorker:
    """States: no child -> (`start`) one that works -> one that waits -> (`rest`) no child."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self.child = ChildProcess(CHILD)

    async def start(self, job: CleaningJob) -> CleaningRun:
        line = await self._filesystem.offload(encode_job, job)
        try:
            await self.child.write(line)
        except ChildLost as lost:
            raise CleaningFailed(str(lost), is_worker_lost=True) from None
        return _ProcessRun(self.child)

    async def rest(self) -> None:
        await self.child.end()


class _ProcessRun:
    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._is_over = False

    async def next_event(self) -> CleaningEvent:
        try:
            event = decode_event(await self._child.read_line())
        except CleaningFailed:
            self._is_over = True
            raise
        except ChildLost as lost:
            self._is_over = True
            raise CleaningFailed(str(lost), is_worker_lost=True) from None
        except (ValueError, TypeError, KeyError) as error:
            self.abort()
            raise CleaningFailed(
                f"its process wrote what is no event: {error}", is_worker_lost=True
            ) from None
        self._is_over = isinstance(event, CleaningDone)
        return event

    def abort(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._child.kill()
