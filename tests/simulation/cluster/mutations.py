"""Bugs put into production code one at a time, to prove that the simulation finds such bugs.

Owns: how each is put in and taken out again. Must not: be active unless asked for.
Invariant: what a mutation returns undoes it completely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from moldau.controller.controller import Controller, Turns
from moldau.controller.core import cluster_control
from moldau.controller.core.cluster_control import ClusterControl
from moldau.controller.core.controller_core import HANDLERS, ControllerCore
from moldau.controller.core.partition_changes import Step
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.raft.core.effects import Persist
from moldau.raft.log_store import LogStore
from moldau.raft.quorum_driver import QuorumDriver
from moldau.raft.snapshot_store import SnapshotStore

Undo = Callable[[], None]


def _replaced(owner: Any, name: str, replacement: Any) -> Undo:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    return lambda: setattr(owner, name, original)


# -- the controller --------------------------------------------------------------------------------


def answer_before_commit() -> Undo:
    """A request is answered as soon as its records are in the leader's own log."""
    original = Controller._take_over

    def take_over(self: Any, request: Any, result: Any, waiting: Any) -> Any:
        committed, self._committed_offset = self._committed_offset, 2**62
        try:
            yield from original(self, request, result, waiting)
        finally:
            self._committed_offset = committed

    return _replaced(Controller, "_take_over", take_over)


def decisions_overlap() -> Undo:
    """A decision that gives way lets others change the state it looks at."""

    def take(self: Any, steps: Any) -> None:
        for _ in steps:
            self._clock.call_later(0.0, take, self, steps)
            return

    return _replaced(Turns, "take", take)


def sessions_unchecked() -> Undo:
    """Nobody looks whether a broker has fallen silent."""
    return _replaced(Controller, "_check_sessions", lambda self: None)


def fenced_stays_in_isr() -> Undo:
    """A broker is fenced, and its partitions are left as they are."""
    return _replaced(cluster_control, "leaving_step", lambda *_a, **_k: Step([], is_last=True))


def unclean_start_is_clean() -> Undo:
    """A broker that lost its unflushed records keeps its places in ISR and ELR."""
    original = cluster_control.leaving_step

    def leaving_step(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        return original(state, broker_id, is_clean=True, **more)

    return _replaced(cluster_control, "leaving_step", leaving_step)


def deposed_keeps_state() -> Undo:
    """A controller that leads no more keeps what it appended and nobody committed."""
    original = ControllerCore.deactivate

    def deactivate(self: Any) -> None:
        image = self.state.image
        original(self)
        self.state.reset(image)

    return _replaced(ControllerCore, "deactivate", deactivate)


def producer_ids_twice() -> Undo:
    """Half of each block of producer ids is handed out again."""

    def allocate(state: Any, request: Any) -> Any:
        result = original(state, request)
        for record, _version in result.records:
            record.next_producer_id -= 500
        return result

    original = HANDLERS[AllocateProducerIdsRequest]
    HANDLERS[AllocateProducerIdsRequest] = allocate
    return lambda: HANDLERS.update({AllocateProducerIdsRequest: original})


def second_broker_epoch() -> Undo:
    """The broker epoch is not the offset of the registration, but the one after it."""
    original = ClusterControl.register_broker

    def register(self: Any, request: Any, *, log_end_offset: int, now_ms: float) -> Any:
        last = max(
            (each.broker_epoch for each in self._state.image.cluster.brokers.values()), default=9
        )
        return original(self, request, log_end_offset=last, now_ms=now_ms)

    return _replaced(ClusterControl, "register_broker", register)


# -- the log ---------------------------------------------------------------------------------------


def persist_in_the_background() -> Undo:
    """Votes and epochs are written after the answers that reflect them have left."""
    original = QuorumDriver._do

    async def do(self: Any, effect: Any) -> None:
        if isinstance(effect, Persist):
            task = asyncio.get_running_loop().create_task(self.store.persist(effect.state))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            return
        await original(self, effect)

    return _replaced(QuorumDriver, "_do", do)


def votes_forgotten() -> Undo:
    """Election states never reach the disk."""

    async def persist(self: Any, state: Any) -> None:
        self._files.quorum_state = state

    return _replaced(LogStore, "persist", persist)


def unflushed_counts() -> Undo:
    """What is appended counts as flushed: for the leader itself, and in a follower's next fetch."""
    original = QuorumDriver.on_appended

    def on_appended(self: Any, voters: Any) -> None:
        original(self, voters)
        end_offset = self._log.log_end_offset
        self.events.add_effects(self.core.on_flushed(end_offset, self.now_ms()))

    return _replaced(QuorumDriver, "on_appended", on_appended)


def delivered_before_commit() -> Undo:
    """Listeners hear of what is in the leader's own log, committed or not."""
    original = QuorumDriver.on_appended

    def on_appended(self: Any, voters: Any) -> None:
        original(self, voters)
        if self.led_epoch == self.core.leader_epoch:
            self.delivery.advance(max(self._log.log_end_offset, self.delivery.high_watermark))

    undo = _replaced(QuorumDriver, "on_appended", on_appended)
    advance = QuorumDriver._do

    async def do(self: Any, effect: Any) -> None:
        if type(effect).__name__ == "AdvanceHighWatermark":
            if effect.high_watermark > self.delivery.high_watermark:
                self.delivery.advance(effect.high_watermark)
            return
        await advance(self, effect)

    undo_advance = _replaced(QuorumDriver, "_do", do)
    return lambda: (undo_advance(), undo())[0]


def trimmed_before_snapshot() -> Undo:
    """The log is trimmed first, and the snapshot that stands for it is finished afterwards."""
    original = SnapshotStore.write

    async def write(self: Any, snapshot_id: Any, *arguments: Any, **options: Any) -> None:
        self._log.roll()
        self._log.delete_records(snapshot_id.end_offset)
        await original(self, snapshot_id, *arguments, **options)

    return _replaced(SnapshotStore, "write", write)


def deposed_stays_active() -> Undo:
    """A controller that leads no more is not told so until it leads again."""
    original = Controller.handle_leader_change

    def handle_leader_change(self: Any, leader_id: int, leader_epoch: int) -> None:
        if not self.is_active or leader_id == self._node_id:
            original(self, leader_id, leader_epoch)

    return _replaced(Controller, "handle_leader_change", handle_leader_change)


MUTATIONS: dict[str, Callable[[], Undo]] = {
    mutation.__name__.replace("_", "-"): mutation
    for mutation in (
        answer_before_commit,
        decisions_overlap,
        sessions_unchecked,
        fenced_stays_in_isr,
        unclean_start_is_clean,
        deposed_keeps_state,
        producer_ids_twice,
        second_broker_epoch,
        persist_in_the_background,
        votes_forgotten,
        unflushed_counts,
        delivered_before_commit,
        trimmed_before_snapshot,
        deposed_stays_active,
    )
}
