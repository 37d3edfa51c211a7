"""What the collector finds in a run ends the run, each time."""

from __future__ import annotations

import gc
from random import Random

import pytest

from tests.simulation.cluster.base_world import COLLECT_EVERY, BaseWorld
from tests.virtual.loop import UnhandledFailure


class ForgetfulWorld(BaseWorld):
    """Leaves a failed future in a cycle, so that only the collector finds it."""

    async def _phases(self, chaos: object) -> None:
        future = self.loop.create_future()
        future.set_exception(ValueError("unheard"))
        cycle: list[object] = [future]
        cycle.append(cycle)


def test_a_failed_future_that_is_garbage_ends_the_run() -> None:
    world = ForgetfulWorld("1", Random(1))
    with pytest.raises(UnhandledFailure, match="never retrieved: ValueError"):
        world.run(None)
    assert gc.isenabled()


def test_garbage_is_collected_within_a_run() -> None:
    class LongWorld(ForgetfulWorld):
        async def _phases(self, chaos: object) -> None:
            await super()._phases(chaos)
            for _ in range(COLLECT_EVERY):
                await self.loop.elapse(1.0)
            pytest.fail("nothing was collected")

    with pytest.raises(UnhandledFailure, match="never retrieved: ValueError"):
        LongWorld("1", Random(1)).run(None)
