"""Files and directories that are removed after a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.storage.log_jobs import MAX_REMOVALS_PER_CALL, DelayedRemoval
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.storage.simulated_filesystem import SimulatedFilesystem


class Visits(SimulatedFilesystem):
    """Counts the paths of each visit to a disk thread."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def offload(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.sizes.append(len(args[1]))
        return await super().offload(function, *args, **kwargs)


async def test_many_that_are_due_are_removed_in_visits_of_bounded_size() -> None:
    filesystem, clock = Visits(), ManualClock(0)
    paths = [f"/d/{number}" for number in range(2 * MAX_REMOVALS_PER_CALL + 1)]
    for path in paths:
        filesystem.put(path, b"x")
    removal = DelayedRemoval(filesystem, clock)
    removal.add(1_000, paths)
    clock.advance(999)
    assert len(filesystem.files()) == len(paths)
    clock.advance(1)

    async def is_done() -> bool:
        clock.advance(0)
        return not filesystem.files()

    await until_async(is_done, what="the removal of all of them")
    await removal.stop()
    assert filesystem.sizes == [MAX_REMOVALS_PER_CALL, MAX_REMOVALS_PER_CALL, 1]
