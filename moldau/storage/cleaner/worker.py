"""The port behind which logs are cleaned, and its form inside this process.

Owns: `CleanerWorker` and `CleaningRun`; InlineWorker, for simulations and unit tests, which works
through `Filesystem.offload`.
Must not: swap files in, or choose logs.
Invariant: events come in order; after `abort` no further one does, and the run writes no file that
it has not begun.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Iterator
from typing import Protocol

from moldau.runtime.filesystem import Filesystem
from moldau.storage.cleaner.cleaning import clean
from moldau.storage.cleaner.job import CleaningAborted, CleaningEvent, CleaningJob
from moldau.storage.cleaner.offset_map import SEED_BYTES


class CleaningRun(Protocol):
    """A cleaning under way."""

    async def next_event(self) -> CleaningEvent:
        """The next event; the last one is CleaningDone. Raises: CleaningFailed."""

    def abort(self) -> None:
        """Stop it; whoever waits for an event gets CleaningFailed. Idempotent."""


class CleanerWorker(Protocol):
    """Cleans one log at a time."""

    async def start(self, job: CleaningJob) -> CleaningRun:
        """Begin; the run before has ended or was aborted. Raises: CleaningFailed."""

    async def rest(self) -> None:
        """There is nothing to do for a while: give memory back."""


class InlineWorker:
    """Works in the file system's own threads, which a simulation does not have either."""

    def __init__(self, filesystem: Filesystem, random: random_module.Random) -> None:
        self._filesystem = filesystem
        self._random = random

    async def start(self, job: CleaningJob) -> CleaningRun:
        seed = self._random.randbytes(SEED_BYTES)
        return _InlineRun(self._filesystem, clean(self._filesystem, job, seed=seed))

    async def rest(self) -> None:
        """Nothing is held between runs."""


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
