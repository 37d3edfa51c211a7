"""ProcessWorker: cleans in a child process, so that no work on records holds up the broker.

Owns: what jobs and events become of a child that is lost. Must not: read or write logs. Invariant:
at most one child at a time; an aborted run's child is not used again.
"""

from __future__ import annotations

from typing import Final

from moldau.runtime.child_process import ChildLost, ChildProcess
from moldau.runtime.filesystem import Filesystem
from moldau.storage.cleaner.job import (
    CleaningDone,
    CleaningEvent,
    CleaningFailed,
    CleaningJob,
    decode_event,
    encode_job,
)
from moldau.storage.cleaner.worker import CleaningRun

CHILD: Final = "moldau.storage.cleaner.child"


class ProcessWorker:
    """States: no child -> (`start`) one that works -> one that waits -> (`rest`) no child."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._child = ChildProcess(CHILD)

    @property
    def child_pid(self) -> int | None:
        """The child's process id, None without one."""
        return self._child.pid

    async def start(self, job: CleaningJob) -> CleaningRun:
        line = await self._filesystem.offload(encode_job, job)
        try:
            await self._child.write(line)
        except ChildLost as lost:
            raise CleaningFailed(str(lost), is_worker_lost=True) from None
        return _ProcessRun(self._child)

    async def rest(self) -> None:
        """End the child, if there is one."""
        await self._child.end()


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
