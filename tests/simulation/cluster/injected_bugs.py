"""Bugs put into production code one at a time, to prove that the simulation finds such bugs.

Owns: what each replaces, and which faults bring it to light. Must not: be active unless asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

from moldau.controller.apis import DECIDERS
from moldau.controller.controller import Controller, Turns
from moldau.controller.core import cluster_control
from moldau.controller.core.cluster_control import ClusterControl
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.partition_changes import Step
from moldau.protocol.api_keys import ApiKey
from moldau.raft.core.effects import Persist
from moldau.raft.core.election import Elections
from moldau.raft.core.state import QuorumState
from moldau.raft.log_store import LogStore
from moldau.raft.quorum_driver import QuorumDriver
from moldau.raft.snapshot_store import SnapshotStore
from moldau.runtime.connector import Connector, PeerRefused
from tests.kit.injected_bugs import InjectedBug, Patch, table
from tests.simulation.cluster.injected_security_bugs import SECURITY_BUGS

# -- the controller --------------------------------------------------------------------------------


def answer_before_commit(patch: Patch) -> None:
    """A request is answered as soon as its records are in the leader's own log."""
    original = Controller._take_over

    def take_over(self: Any, request: Any, result: Any, waiting: Any) -> Any:
        committed, self._committed_offset = self._committed_offset, 2**62
        try:
            yield from original(self, request, result, waiting)
        finally:
            self._committed_offset = committed

    patch.setattr(Controller, "_take_over", take_over)


def decisions_overlap(patch: Patch) -> None:
    """A decision that gives way lets others change the state it looks at."""

    def take(self: Any, steps: Any) -> None:
        for _ in steps:
            self._clock.call_later(0.0, take, self, steps)
            return

    patch.setattr(Turns, "take", take)


def sessions_unchecked(patch: Patch) -> None:
    """The controller does not look whether a broker has fallen silent."""
    patch.setattr(Controller, "_check_sessions", lambda self: None)


def fenced_stays_in_isr(patch: Patch) -> None:
    """A broker is fenced, and its partitions are left as they are."""
    patch.setattr(cluster_control, "leaving_step", lambda *_a, **_k: Step([], is_last=True))


def unclean_start_is_clean(patch: Patch) -> None:
    """A broker that lost its unflushed records keeps its places in ISR and ELR."""
    original = cluster_control.leaving_step

    def leaving_step(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        return original(state, broker_id, is_clean=True, **more)

    patch.setattr(cluster_control, "leaving_step", leaving_step)


def deposed_keeps_state(patch: Patch) -> None:
    """A controller that leads no more keeps what it appended and no majority committed."""
    original = ControllerCore.deactivate

    def deactivate(self: Any) -> None:
        image = self.state.image
        original(self)
        self.state.reset(image)

    patch.setattr(ControllerCore, "deactivate", deactivate)


def producer_ids_twice(patch: Patch) -> None:
    """Half of each block of producer ids is handed out again."""

    def allocate(*asked: Any) -> Any:
        result: Any = original(*asked)
        for record, _version in result.records:
            record.next_producer_id -= 500
        return result

    original = DECIDERS[ApiKey.ALLOCATE_PRODUCER_IDS]
    patch.setitem(DECIDERS, ApiKey.ALLOCATE_PRODUCER_IDS, allocate)


def second_broker_epoch(patch: Patch) -> None:
    """The broker epoch is not the offset of the registration, but the one after it."""
    original = ClusterControl.register_broker

    def register(self: Any, request: Any, asked: Any) -> Any:
        last = max(
            (each.broker_epoch for each in self._state.image.cluster.brokers.values()), default=9
        )
        return original(self, request, asked._replace(log_end_offset=last))

    patch.setattr(ClusterControl, "register_broker", register)


# -- the log ---------------------------------------------------------------------------------------


def persist_in_the_background(patch: Patch) -> None:
    """Votes and epochs are written after the answers that reflect them have left."""
    original = QuorumDriver._do

    async def do(self: Any, effect: Any) -> None:
        if isinstance(effect, Persist):
            task = asyncio.get_running_loop().create_task(self.store.persist(effect.state))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            return
        await original(self, effect)

    patch.setattr(QuorumDriver, "_do", do)


def votes_forgotten(patch: Patch) -> None:
    """Election states never reach the disk."""

    async def persist(self: Any, state: Any) -> None:
        self._files.quorum_state = state

    patch.setattr(LogStore, "persist", persist)


def unflushed_counts(patch: Patch) -> None:
    """What is appended counts as flushed: for the leader itself, and in a follower's next fetch."""
    original = QuorumDriver.on_appended

    def on_appended(self: Any, voters: Any) -> None:
        original(self, voters)
        end_offset = self._log.log_end_offset
        self.events.add_effects(self.core.on_flushed(end_offset, self.now_ms()))

    patch.setattr(QuorumDriver, "on_appended", on_appended)


def delivered_before_commit(patch: Patch) -> None:
    """Listeners hear of what is in the leader's own log, committed or not."""
    original = QuorumDriver.on_appended

    def on_appended(self: Any, voters: Any) -> None:
        original(self, voters)
        if self.led_epoch == self.core.state.leader_epoch:
            self.delivery.advance(max(self._log.log_end_offset, self.delivery.high_watermark))

    patch.setattr(QuorumDriver, "on_appended", on_appended)
    advance = QuorumDriver._do

    async def do(self: Any, effect: Any) -> None:
        if type(effect).__name__ == "AdvanceHighWatermark":
            if effect.high_watermark > self.delivery.high_watermark:
                self.delivery.advance(effect.high_watermark)
            return
        await advance(self, effect)

    patch.setattr(QuorumDriver, "_do", do)


def trimmed_before_snapshot(patch: Patch) -> None:
    """The log is trimmed first, and the snapshot that stands for it is finished afterwards."""
    original = SnapshotStore.write

    async def write(self: Any, snapshot_id: Any, *arguments: Any, **options: Any) -> None:
        self._log.roll()
        self._log.delete_records(snapshot_id.end_offset)
        await original(self, snapshot_id, *arguments, **options)

    patch.setattr(SnapshotStore, "write", write)


def deposed_stays_active(patch: Patch) -> None:
    """A controller that leads no more does not hear so until it leads again."""
    original = Controller.handle_leader_change

    def handle_leader_change(self: Any, leader_id: int, leader_epoch: int) -> None:
        if not self.is_active or leader_id == self.node_id:
            original(self, leader_id, leader_epoch)

    patch.setattr(Controller, "handle_leader_change", handle_leader_change)


def full_leader_stays(patch: Patch) -> None:
    """A controller whose disk has no room goes on leading."""
    patch.setattr(Elections, "lose_room", lambda *_a, **_k: None)


def refused_peer_is_given_up(patch: Patch) -> None:
    """A node that was refused once by a peer, or refused it, never connects to it again."""
    original = Connector.connect

    async def connect(self: Any, host: str, port: int, **options: Any) -> Any:
        if (host, port) in self._problems:
            raise PeerRefused(f"{host}:{port}")
        return await original(self, host, port, **options)

    patch.setattr(Connector, "connect", connect)


def stands_without_asking(patch: Patch) -> None:
    """A voter that hears from no leader raises the epoch at once: no PreVote."""
    original = QuorumState.become_prospective

    def become_prospective(self: Any) -> None:
        original(self)
        self.become_candidate()

    patch.setattr(QuorumState, "become_prospective", become_prospective)


BUGS = table(
    InjectedBug(answer_before_commit, 1),
    InjectedBug(decisions_overlap, 11),
    InjectedBug(sessions_unchecked),
    InjectedBug(fenced_stays_in_isr, 1, ("kill_broker", "stop_broker")),
    InjectedBug(unclean_start_is_clean, 2, ("kill_broker",)),
    InjectedBug(deposed_keeps_state, 2, ("stop_controller", "partition", "resign", "stall_disk")),
    InjectedBug(producer_ids_twice, 1),
    InjectedBug(second_broker_epoch, 1),
    InjectedBug(persist_in_the_background, 2, ("storage_outage",)),
    InjectedBug(votes_forgotten),
    InjectedBug(unflushed_counts, 4, ("storage_outage",)),
    InjectedBug(delivered_before_commit),
    InjectedBug(trimmed_before_snapshot, 12, ("crash_on_file", "kill_controller")),
    InjectedBug(deposed_stays_active),
    InjectedBug(full_leader_stays, 2, ("full_disk",)),
    InjectedBug(refused_peer_is_given_up, 3, ("end_certificate",)),
    InjectedBug(stands_without_asking, 14, ("end_certificate",)),
    *SECURITY_BUGS,
)
