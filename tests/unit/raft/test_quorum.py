"""Three metadata logs as a quorum: elections, replication, divergence, restarts, observers."""

from __future__ import annotations

import asyncio
import errno
from typing import Any
from uuid import UUID

import pytest

from moldau.metadata.log import CommittedBatch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import FetchRequest as FetchMessage
from moldau.protocol.messages.p52_vote import VoteRequest as VoteMessage
from moldau.protocol.messages.p53_begin_quorum_epoch import BeginQuorumEpochRequest
from moldau.protocol.messages.p54_end_quorum_epoch import EndQuorumEpochRequest
from moldau.protocol.metadata_records import NoOpRecord
from moldau.protocol.types import ZERO_UUID
from moldau.raft import VoterDescription, VoterSet
from moldau.raft.core.messages import FetchRequest
from moldau.raft.core.values import ReplicaKey
from tests.storage.simulated_filesystem import Fault

from .fixtures import DIRECTORY, Listener, snapshot_of
from .quorums import Node, Quorum, changed_answers, endpoint_of, voters_of


async def test_one_leads_and_all_hear_the_same() -> None:
    async with Quorum(1, 2, 3) as quorum:
        leader = await quorum.leader()
        for index in range(20):
            leader.append(f"t{index}")
        await quorum.converged(*(f"t{index}" for index in range(20)))
        epoch = leader.running.state.leader_epoch
        await quorum.until(
            lambda: all(
                node.listener.leaders[-1:] == [(leader.node_id, epoch)]
                for node in quorum.nodes.values()
            )
        )
        for node in quorum.nodes.values():
            log = node.running
            assert log.leadership.leader_id == leader.node_id
            assert log.leadership.endpoints == (endpoint_of(leader.node_id),)
            assert log.voters == voters_of(1, 2, 3)
            if node is not leader:
                assert log.append([(NoOpRecord(), 0)], leader_epoch=epoch) == (
                    ErrorCode.NOT_CONTROLLER,
                    -1,
                )
        assert len(quorum.leaders()) == 1


@pytest.mark.parametrize("lose_power", [False, True], ids=["kill", "power loss"])
async def test_failover_and_return(lose_power: bool) -> None:
    async with Quorum(1, 2, 3, seed=2) as quorum:
        first = await quorum.leader()
        first.append("a")
        await quorum.converged("a")
        old_epoch = first.running.state.leader_epoch
        first.crash(lose_power=lose_power)
        second = await quorum.leader()
        assert second is not first
        assert second.running.state.leader_epoch > old_epoch
        second.append("b")
        await quorum.converged("a", "b")
        await first.start()
        await quorum.converged("a", "b")
        assert quorum.leaders() == [second], "a return disturbs nobody"


async def test_followers_hear_of_a_leader_between_the_old_epoch_and_the_new() -> None:
    heard: dict[int, list[tuple[str, int]]] = {}

    class Order(Listener):
        def __init__(self, node_id: int) -> None:
            super().__init__()
            self.node_id = node_id

        def handle_commit(self, batch: CommittedBatch) -> None:
            super().handle_commit(batch)
            heard[self.node_id].append(("batch", batch.leader_epoch))

        def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
            super().handle_leader_change(leader_id, leader_epoch)
            heard[self.node_id].append(("leader" if leader_id >= 0 else "nobody", leader_epoch))

    async with Quorum(1, 2, 3, seed=18) as quorum:
        for node in quorum.nodes.values():
            heard[node.node_id] = []
            node.running.add_listener(Order(node.node_id))
        for index in range(3):
            leader = await quorum.leader()
            leader.append(f"t{index}")
            await quorum.converged(*(f"t{each}" for each in range(index + 1)))
            await leader.running.resign()
            await quorum.leader(other_than=leader)
        await quorum.until(lambda: all(each[-1][0] == "batch" for each in heard.values()))
    for events in heard.values():
        leaders = [epoch for kind, epoch in events if kind == "leader"]
        assert len(leaders) >= 3
        assert leaders == sorted(set(leaders)), "each leader once"
        for position, (kind, epoch) in enumerate(events):
            if kind == "leader":
                assert all(old < epoch for what, old in events[:position] if what == "batch")
            if kind == "batch":
                assert epoch in leaders, "nobody's batch comes before its leader"
                assert events.index(("leader", epoch)) < position


async def test_a_leader_that_steps_down_is_followed_by_another() -> None:
    async with Quorum(1, 2, 3, seed=19) as quorum:
        first = await quorum.leader()
        for _ in range(3):
            first.running.step_down()
        assert await quorum.leader(other_than=first) is not first
        first.running.step_down()
        await quorum.converged()


async def test_what_was_not_committed_is_cut_where_others_have_gone_on() -> None:
    async with Quorum(1, 2, 3, seed=3) as quorum:
        first = await quorum.leader()
        first.append("a")
        await quorum.converged("a")
        quorum.network.isolate(first.node_id)
        for index in range(5):
            first.append(f"lost{index}")
        second = await quorum.leader(other_than=first)
        second.append("b")
        second.append("c")
        quorum.network.heal()
        await quorum.converged("a", "b", "c")
        assert first.running.log_end_offset == second.running.log_end_offset
        await quorum.until(lambda: first.listener.leaders[-1][0] == second.node_id)
        assert (-1, second.running.state.leader_epoch) in first.listener.leaders or any(
            leader_id == -1 for leader_id, _ in first.listener.leaders
        ), "deposed before somebody else led"
        await first.stop()
        await first.start()
        await quorum.converged("a", "b", "c")


async def test_a_leader_without_a_majority_resigns_and_commits_nothing() -> None:
    async with Quorum(1, 2, 3, seed=4) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        quorum.network.isolate(leader.node_id)
        leader.append("b")
        await quorum.until(lambda: not leader.running.is_leader)
        assert leader.listener.names == ["a"]
        assert leader.listener.leaders[-1][0] == -1


async def test_an_empty_follower_starts_from_the_snapshot() -> None:
    async with Quorum(1, 2, 3, seed=5, retention_bytes=1) as quorum:
        leader = await quorum.leader()
        late = next(node for node in quorum.nodes.values() if node is not leader)
        await late.stop()
        names = [f"t{index}" for index in range(300)]
        for name in names[:-1]:
            leader.append(name)
        await quorum.converged(*names[:-1])
        for node in quorum.nodes.values():
            if node.log is not None:
                await snapshot_of(node.running, node.listener)
        leader.append(names[-1])
        await quorum.converged(*names)
        assert leader.running.files.snapshots[0].end_offset > 0
        late.filesystem.rmtree(f"{DIRECTORY}/__cluster_metadata-0")
        late.changes["fetch_snapshot_max_bytes"] = 1000
        await late.start()
        await quorum.converged(*names)
        assert late.listener.snapshots
        assert late.running.files.snapshots == leader.running.files.snapshots
        assert late.running.voters == voters_of(1, 2, 3)
        await late.stop()
        await late.start()
        await quorum.converged(*names)


async def test_all_stop_and_start() -> None:
    async with Quorum(1, 2, 3, seed=6) as quorum:
        for generation in range(3):
            leader = await quorum.leader()
            leader.append(f"t{generation}")
            await quorum.converged(*(f"t{index}" for index in range(generation + 1)))
            for node in quorum.nodes.values():
                await node.stop()
            for node in quorum.nodes.values():
                await node.start()
        leader = await quorum.leader()
        await quorum.converged("t0", "t1", "t2")
        assert leader.running.state.leader_epoch >= 4, "a new epoch each time"


async def test_a_leader_that_stops_hands_over_at_once() -> None:
    async with Quorum(1, 2, 3, seed=7, fetch_timeout_ms=30_000) as quorum:
        first = await quorum.leader()
        first.append("a")
        await quorum.converged("a")
        before_ms = quorum.clock.monotonic_ms()
        await first.stop()
        second = await quorum.leader()
        assert quorum.clock.monotonic_ms() - before_ms < 10_000, "nobody waited for a fetch timeout"
        second.append("b")
        await quorum.converged("a", "b")


async def test_leadership_can_be_given_away() -> None:
    async with Quorum(1, 2, 3, seed=8) as quorum:
        first = await quorum.leader()
        await quorum.until(lambda: first.running.high_watermark > 0)
        target = next(node for node in quorum.nodes.values() if node is not first)
        await quorum.until(lambda: target.running.log_end_offset == first.running.log_end_offset)
        error, _ = await first.running.resign(ReplicaKey(target.node_id, target.directory_id))
        assert error is ErrorCode.NONE
        second = await quorum.leader(other_than=first)
        assert second is target


async def test_an_observer_hears_everything_and_counts_for_nothing() -> None:
    async with Quorum(1, 2, 3, seed=9) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        broker = quorum.add(7, is_controller=False)
        await broker.start()
        await quorum.converged("a")
        leader.append("b")
        await quorum.converged("a", "b")
        await quorum.until(lambda: leader.running.status().observers)
        (progress,) = leader.running.status().observers
        assert progress.replica == ReplicaKey(7, broker.directory_id)
        assert [each.replica.node_id for each in leader.running.status().voters] == [1, 2, 3]
        for node in list(quorum.nodes.values()):
            if node not in (leader, broker):
                node.crash()
        leader.append("c")
        await quorum.until(lambda: not leader.running.is_leader)
        assert broker.listener.names == ["a", "b"]
        assert not broker.running.is_leader


async def added(quorum: Quorum, leader: Node, node: Node) -> tuple[ErrorCode, str]:
    voter = VoterDescription(node.node_id, node.directory_id, (endpoint_of(node.node_id),))
    task = asyncio.ensure_future(leader.running.add_voter(voter, timeout_ms=20_000))
    await quorum.until(task.done)
    return task.result()


async def removed(quorum: Quorum, leader: Node, node: Node) -> tuple[ErrorCode, str]:
    key = ReplicaKey(node.node_id, node.directory_id)
    task = asyncio.ensure_future(leader.running.remove_voter(key, timeout_ms=20_000))
    await quorum.until(task.done)
    return task.result()


async def test_voters_come_and_go() -> None:
    async with Quorum(1, 2, 3, seed=10) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        for node_id in (4, 5):
            node = quorum.add(node_id)
            await node.start()
            await quorum.converged("a")
            assert await added(quorum, leader, node) == (ErrorCode.NONE, "")
        await quorum.until(
            lambda: all(
                node.running.voters == voters_of(1, 2, 3, 4, 5) for node in quorum.nodes.values()
            )
        )
        for _ in range(2):
            leader = await quorum.leader()
            error, _message = await removed(quorum, leader, leader)
            assert error is ErrorCode.NONE
            successor = await quorum.leader(other_than=leader)
            assert leader.node_id not in {
                voter.voter_id for voter in successor.running.voters.voters
            }
            await leader.stop()
            del quorum.nodes[leader.node_id]
        assert len(quorum.nodes) == 3
        leader = await quorum.leader()
        leader.append("b")
        await quorum.converged("a", "b")
        for node in quorum.nodes.values():
            await node.stop()
        for node in quorum.nodes.values():
            await node.start()
        leader = await quorum.leader()
        assert {voter.voter_id for voter in leader.running.voters.voters} == set(quorum.nodes)


async def test_a_wiped_disk_is_another_voter() -> None:
    async with Quorum(1, 2, 3, seed=11) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        old = next(node for node in quorum.nodes.values() if node is not leader)
        await old.stop()
        wiped = quorum.add(old.node_id, local=ReplicaKey(old.node_id, UUID(int=0xFEED)))
        await wiped.start()
        await quorum.converged("a")
        assert ReplicaKey(wiped.node_id, wiped.directory_id) in [
            each.replica for each in leader.running.status().observers
        ]
        assert (await removed(quorum, leader, old))[0] is ErrorCode.NONE
        assert (await added(quorum, leader, wiped))[0] is ErrorCode.NONE
        keys = [
            ReplicaKey(voter.voter_id, voter.directory_id) for voter in leader.running.voters.voters
        ]
        assert ReplicaKey(wiped.node_id, wiped.directory_id) in keys
        leader.append("b")
        await quorum.converged("a", "b")


def static_voters(*node_ids: int) -> VoterSet:
    """As `controller.quorum.voters` names them."""
    voters = voters_of(*node_ids).voters
    return VoterSet(tuple(voter._replace(directory_id=ZERO_UUID) for voter in voters))


async def test_configured_voters() -> None:
    quorum = Quorum(1, 2, 3, seed=12, static_voters=static_voters(1, 2, 3))
    quorum.voters = VoterSet()
    async with quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        await quorum.until(
            lambda: all(
                node.running.high_watermark == leader.running.log_end_offset
                for node in quorum.nodes.values()
            )
        )
        task = asyncio.ensure_future(leader.running.upgrade_kraft_version(1, timeout_ms=10_000))
        await quorum.until(task.done)
        assert task.result() == (ErrorCode.NONE, "")
        await quorum.until(
            lambda: all(node.running.voters.kraft_version == 1 for node in quorum.nodes.values())
        )
        assert leader.running.voters == voters_of(1, 2, 3)
        leader.crash()
        second = await quorum.leader()
        second.append("b")
        await quorum.converged("a", "b")


async def test_a_stopped_replica_does_not_answer_for_kraft_version() -> None:
    async with Quorum(1, seed=12) as quorum:
        leader = await quorum.leader()
        running = leader.running
        closing = asyncio.ensure_future(running.close())
        await quorum.until(closing.done)
        error, words = await running.upgrade_kraft_version(1, timeout_ms=10_000)
        assert error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert words


async def test_damaged_records_are_refused_and_fetched_again() -> None:
    async with Quorum(1, 2, 3, seed=13) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        damaged = 0

        def flip(partition: object) -> None:
            nonlocal damaged
            records = getattr(partition, "records", None)
            if records is not None and len(records) and damaged < 4:
                damaged += 1
                data = bytearray(records)
                data[-1] ^= 0x10
                partition.records = memoryview(data)  # type: ignore[attr-defined]

        quorum.network.tamper = changed_answers(flip)
        leader.append("b")
        await quorum.converged("a", "b")
        assert damaged == 4
        assert [node.fatal for node in quorum.nodes.values()] == [[], [], []]


async def test_what_was_refused_is_fetched_again_without_anything_else_happening() -> None:
    async with Quorum(1, 2, 3, seed=19, fetch_timeout_ms=200_000) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        await quorum.pass_ms(1_000)  # the fetch of each follower waits for news
        damaged: list[int] = []

        def flip(node_id: int, answer: Any) -> None:
            partition = answer.responses[0].partitions[0] if hasattr(answer, "responses") else None
            if partition is not None and partition.records and node_id not in damaged:
                damaged.append(node_id)
                data = bytearray(partition.records)
                data[-1] ^= 0x10
                partition.records = memoryview(data)

        quorum.network.tamper = flip
        leader.append("b")
        await quorum.converged("a", "b")
        assert len(damaged) == 2
        assert leader.running.state.leader_epoch == 1


async def test_an_answer_that_ends_inside_a_batch_is_taken_up_to_there() -> None:
    async with Quorum(1, 2, 3, seed=14) as quorum:
        leader = await quorum.leader()
        await quorum.until(lambda: leader.running.high_watermark > 0)
        cuts = 0

        def cut(partition: object) -> None:
            nonlocal cuts
            records = getattr(partition, "records", None)
            if records is not None and len(records) > 300:
                cuts += 1
                partition.records = records[:-10]  # type: ignore[attr-defined]

        quorum.network.tamper = changed_answers(cut)
        for index in range(50):
            leader.append(f"t{index}")
        await quorum.converged(*(f"t{index}" for index in range(50)))
        assert cuts


async def test_a_followers_failed_flush_is_never_an_acknowledgement() -> None:
    async with Quorum(1, 2, 3, seed=15) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        failing, healthy = (node for node in quorum.nodes.values() if node is not leader)
        healthy.crash()
        failing.filesystem.faults.append(Fault("fdatasync", ".log", errno.EIO))
        leader.append("b")
        await quorum.until(lambda: failing.fatal)
        assert len(failing.fatal) == 1
        await quorum.pass_ms(1_000)
        fetched = [
            request.fetch_offset
            for asking, _target, request in quorum.network.requests
            if asking == failing.node_id and isinstance(request, FetchRequest)
        ]
        assert max(fetched) < leader.running.log_end_offset
        assert leader.listener.names == ["a"]
        assert failing.listener.leaders[-1][0] == -1


async def test_a_vote_that_cannot_be_stored_is_not_given() -> None:
    async with Quorum(1, 2, 3, seed=16) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        await quorum.converged("a")
        first, second = (node for node in quorum.nodes.values() if node is not leader)
        first.filesystem.faults.append(Fault("append", "quorum-state", errno.EIO, count=None))
        leader.crash()
        await quorum.until(lambda: first.fatal)
        await quorum.pass_ms(5_000)
        assert quorum.leaders() == []
        assert second.fatal == []


async def test_an_older_peer_is_spoken_to_in_its_versions() -> None:
    quorum = Quorum(1, 2, 3, seed=17, static_voters=static_voters(1, 2, 3))
    quorum.voters = VoterSet()
    quorum.network.max_version = {
        FetchMessage: 12,
        VoteMessage: 2,
        BeginQuorumEpochRequest: 0,
        EndQuorumEpochRequest: 0,
    }
    async with quorum:
        first = await quorum.leader()
        first.append("a")
        await quorum.converged("a")
        await first.stop()
        second = await quorum.leader()
        second.append("b")
        await quorum.converged("a", "b")
        assert second is not first
