"""The simulator's own parts: virtual time, network, disk, ledger. What checks others is checked."""

from __future__ import annotations

from random import Random

import pytest

from moldau.raft.core.values import ElectionState, EpochEnd, SnapshotId
from moldau.raft.core.voters import VoterSet
from tests.kit.seeds import Violation
from tests.simulation import snapshot_bytes
from tests.simulation.disk import Batch, Disk, DiskFailure, DiskLog, Snapshot
from tests.simulation.ledger import Entry, Ledger
from tests.simulation.network import Network, Stream
from tests.simulation.scheduler import Scheduler


def _batch(base_offset: int, leader_epoch: int, *payloads: int) -> Batch:
    return Batch(base_offset, leader_epoch, payloads)


def _disk(*batches: Batch) -> Disk:
    disk = Disk(1)
    for batch in batches:
        disk.change_log("append", batch)
    return disk


class TestScheduler:
    def test_runs_in_the_order_of_time_and_of_asking(self):
        scheduler = Scheduler("any")
        seen: list[str] = []
        scheduler.after(5, seen.append, "late")
        scheduler.after(1, seen.append, "first")
        scheduler.after(1, seen.append, "second")
        assert scheduler.run_until(4) is False
        assert (seen, scheduler.now_ms) == (["first", "second"], 4)
        assert scheduler.run_until(9, lambda: "late" in seen) is True
        assert scheduler.now_ms == 5

    def test_digest_stands_for_every_line(self):
        digests = []
        for lines in (["a", "b"], ["a", "b"], ["a", "c"]):
            scheduler = Scheduler("any")
            for line in lines:
                scheduler.event(line)
            digests.append(scheduler.digest())
        assert digests[0] == digests[1] != digests[2]


class TestNetwork:
    def test_blocked_direction_loses_messages_the_other_does_not(self):
        scheduler = Scheduler("any")
        network = Network(scheduler)
        seen: list[str] = []
        network.block(1, 2, 1_000)
        network.send(1, 2, lambda: seen.append("lost"), may_repeat=True)
        network.send(2, 1, lambda: seen.append("there"), may_repeat=True)
        scheduler.run_until(1_000)
        network.send(1, 2, lambda: seen.append("healed"), may_repeat=True)
        scheduler.run_until(2_000)
        assert seen == ["there", "healed"]

    def test_reset_loses_what_is_on_its_way_and_both_ends_hear_of_it(self):
        scheduler = Scheduler("any")
        network = Network(scheduler)
        seen: list[object] = []
        network.reset_listeners.append(lambda one, other: seen.append((one, other)))
        network.send(1, 2, lambda: seen.append("lost"), may_repeat=True)
        network.reset(2, 1)
        scheduler.run_until(10_000)
        assert seen == [(2, 1)]

    def test_requests_may_arrive_after_a_reset_answers_never(self):
        scheduler = Scheduler("any")
        network = Network(scheduler)
        network.late_rate = 1.0
        seen: list[str] = []
        network.send(1, 2, lambda: seen.append("request"), may_repeat=True)
        network.send(2, 1, lambda: seen.append("answer"), may_repeat=False)
        network.reset(1, 2)
        scheduler.run_until(10_000)
        assert seen == ["request"]
        assert scheduler.faults["late"] == 1

    def test_stream_keeps_order_and_waits_for_a_blocked_direction(self):
        scheduler = Scheduler("any")
        network = Network(scheduler)
        stream = Stream(network, 1, 2)
        seen: list[tuple[int, bool]] = []
        network.block(1, 2, 500)
        for number in range(50):
            stream.send(lambda n=number: seen.append((n, scheduler.now_ms >= 500)))
        scheduler.run_until(5_000)
        assert seen == [(number, True) for number in range(50)]
        stream.send(lambda: seen.append((99, True)))
        stream.clear()
        scheduler.run_until(10_000)
        assert len(seen) == 50


class TestDisk:
    def test_kill_keeps_what_power_loss_does_not(self):
        disk = _disk(_batch(0, 1, 10), _batch(1, 1, 11), _batch(2, 1, 12))
        disk.sync_log(1)
        ends = []
        for seed in range(50):
            copy = _disk(*disk.log.batches)
            copy.sync_log(1)
            copy.lose_power(Random(seed))
            ends.append(copy.log.end)
        assert sorted(set(ends)) == [1, 2, 3]
        disk.recover()
        assert (disk.log.end, disk.durable_log.end) == (3, 3)

    def test_a_truncation_may_be_lost_with_what_came_after_it(self):
        ends = set()
        for seed in range(50):
            disk = _disk(_batch(0, 1, 10), _batch(1, 1, 11))
            disk.sync_log(2)
            disk.change_log("truncate", 1)
            disk.change_log("append", _batch(1, 2, 20))
            disk.lose_power(Random(seed))
            ends.add(tuple(batch.leader_epoch for batch in disk.log.batches))
        assert ends == {(1, 1), (1,), (1, 2)}

    def test_holds_durably_only_what_was_synced_or_lies_below_a_snapshot(self):
        disk = _disk(_batch(0, 1, 10), _batch(1, 2, 11))
        assert not disk.holds_durably(0, 1)
        disk.sync_log(1)
        assert disk.holds_durably(0, 1)
        assert not disk.holds_durably(0, 2)
        assert not disk.holds_durably(1, 2)
        disk.snapshots[SnapshotId(2, 2)] = Snapshot(SnapshotId(2, 2), 2, 0, VoterSet())
        assert disk.holds_durably(1, 2)

    @pytest.mark.parametrize(
        ("snapshot_id", "expected"),
        [(SnapshotId(1, 1), (0, 2)), (SnapshotId(2, 3), (2, 2)), (SnapshotId(5, 3), (5, 5))],
    )
    def test_recovery_aligns_log_and_snapshot(
        self, snapshot_id: SnapshotId, expected: tuple[int, int]
    ):
        """The log stays when it holds the snapshot's last record; else it begins behind it."""
        disk = _disk(_batch(0, 1, 10), _batch(1, 2, 11))
        disk.snapshots[snapshot_id] = Snapshot(snapshot_id, 1, 0, VoterSet())
        disk.recover()
        assert (disk.log.start, disk.log.end) == expected

    def test_failing_disk_refuses_after_a_while(self):
        disk = Disk(1)
        disk.fails_after = 1
        assert disk.latency_ms(0.0, Random(0)) > 0
        with pytest.raises(DiskFailure):
            disk.latency_ms(0.0, Random(0))

    def test_election_state_that_was_not_durable_goes_with_the_power(self):
        disk = Disk(1)
        disk.election = ElectionState(5)
        disk.lose_power(Random(0))
        assert disk.election == ElectionState(0)

    def test_epochs_end_where_the_next_begins(self):
        disk = _disk(_batch(0, 1, 1, 2), _batch(2, 3, 3), _batch(3, 5, 4))
        log = DiskLog(disk)
        assert log.end_of_epoch(0) == EpochEnd(0, 0)
        assert log.end_of_epoch(1) == EpochEnd(1, 2)
        assert log.end_of_epoch(2) == EpochEnd(1, 2)
        assert log.end_of_epoch(4) == EpochEnd(3, 3)
        assert log.end_of_epoch(9) == EpochEnd(5, 4)
        disk.snapshots[SnapshotId(2, 1)] = Snapshot(SnapshotId(2, 1), 2, 0, VoterSet())
        disk.change_log("trim", 2)
        assert log.end_of_epoch(2) == EpochEnd(1, 2)
        assert log.end_of_epoch(0) == EpochEnd(0, 2)


class TestSnapshotBytes:
    def test_round_trip_and_damage(self):
        snapshot = Snapshot(SnapshotId(5, 2), 4, 99, VoterSet())
        data = snapshot_bytes.encode(snapshot)
        assert snapshot_bytes.decode(data) == snapshot
        assert snapshot_bytes.decode(data[:-1] + b"x") is None


class _Log:
    def __init__(self, *entries: Entry, start: int = 0) -> None:
        self._entries, self._start = entries, start

    def entry_at(self, offset: int) -> Entry | None:
        position = offset - self._start
        return self._entries[position] if 0 <= position < len(self._entries) else None

    def start(self) -> int:
        return self._start

    def end(self) -> int:
        return self._start + len(self._entries)


class TestLedger:
    def test_two_leaders_of_an_epoch(self):
        ledger = Ledger()
        ledger.leads("a", 1, _Log())
        ledger.leads("a", 1, _Log())
        with pytest.raises(Violation, match="two-leaders"):
            ledger.leads("b", 1, _Log())

    def test_a_leader_without_what_is_committed(self):
        ledger = Ledger()
        ledger.commit("a", 0, (1, "x"))
        ledger.leads("a", 2, _Log((1, "x")))
        ledger.leads("a", 3, _Log(start=1))
        with pytest.raises(Violation, match="leader-lacks-committed"):
            ledger.leads("b", 4, _Log((2, "y")))

    def test_an_offset_is_committed_once(self):
        ledger = Ledger()
        assert ledger.commit("a", 0, (1, "x")) is True
        assert ledger.commit("b", 0, (1, "x")) is False
        with pytest.raises(Violation, match="committed-twice"):
            ledger.commit("b", 0, (2, "x"))
        with pytest.raises(Violation, match="commit-gap"):
            ledger.commit("b", 2, (2, "x"))

    def test_what_is_committed_stays(self):
        ledger = Ledger()
        ledger.commit("a", 0, (1, "x"))
        ledger.erase("b", 0, (2, "x"))
        ledger.erase("b", 1, (1, "x"))
        with pytest.raises(Violation, match="committed-erased"):
            ledger.erase("b", 0, (1, "x"))

    def test_logs_match(self):
        ledger = Ledger()
        ledger.append("a", 0, (1, "x"), 0)
        ledger.append("b", 0, (1, "x"), 0)
        ledger.append("b", 0, (2, "y"), 0)
        with pytest.raises(Violation, match="log-mismatch"):
            ledger.append("c", 0, (1, "z"), 0)

    def test_acknowledged_is_committed(self):
        ledger = Ledger()
        ledger.commit("a", 0, (1, "x"))
        ledger.acknowledge("x", 0)
        with pytest.raises(Violation, match="acknowledged-lost"):
            ledger.acknowledge("y", 1)
        with pytest.raises(Violation, match="acknowledged-twice"):
            ledger.acknowledge("x", 0)
