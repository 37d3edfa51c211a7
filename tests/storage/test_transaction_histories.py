"""Random transactional histories of one partition against a list: what readers of committed data
get from the leader's log and from a follower's, through crashes, cuts, rolls and deletions.

An aborted record is never returned, a committed one always, in order, each once; nothing of an
undecided transaction is.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    Codec,
    ControlRecordType,
    EndTxnMarker,
    encode_end_txn_batch,
)
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.storage.log_fixtures import START_MS, LogBench, batch_of
from tests.storage.transaction_reader import read_committed

PRODUCERS = st.integers(1, 4)
NO_TRANSACTION = -1
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, segment_index_bytes=240)


@dataclass
class Entry:
    """One offset of the log: a record, or a marker (`is_commit` set)."""

    offset: int
    producer_id: int
    value: bytes | None
    transactional: bool
    batch_start: int
    is_commit: bool | None = None


@dataclass
class Producer:
    """What a producer and its coordinator know."""

    epoch: int = 0
    sequence: int = 0


class Replica:
    """A log, and how far what is in it is known to be committed."""

    def __init__(self, directory: str) -> None:
        self.bench = LogBench(directory=directory, config=CONFIG)
        self.log: Log = self.bench.open()
        self.exact_from = 0
        """A restart forgets which markers below here were not committed yet: transactions that
        they ended count as decided as soon as the log is open. So does a cut,
        below the snapshot of producers that it starts from."""

    def restart(self, *, clean: bool, flush: bool) -> None:
        if flush:
            self.log.flush()
        high_watermark = self.log.high_watermark
        self.log = self.bench.reopen(self.log, clean=clean)
        self.log.update_high_watermark(high_watermark)
        self.exact_from = self.log.log_end_offset

    def cut(self, offset: int) -> None:
        self.log.truncate_to(offset)
        end = self.log.log_end_offset
        snapshots = [each for each in self.log.producer_state.snapshot_offsets if each <= end]
        self.exact_from = max([min(self.exact_from, end), *snapshots])


class HistoryMachine(RuleBasedStateMachine):
    """`entries` is what the leader's log must hold; the follower has a beginning of it."""

    def __init__(self) -> None:
        super().__init__()
        self.leader = Replica("/leader/topic-0")
        self.follower = Replica("/follower/topic-0")
        self.entries: list[Entry] = []
        self.producers: dict[int, Producer] = {}
        self.counter = 0

    @property
    def log(self) -> Log:
        return self.leader.log

    def producer(self, producer_id: int) -> Producer:
        return self.producers.setdefault(producer_id, Producer())

    def is_open(self, producer_id: int) -> bool:
        return open_since(self.entries, producer_id) is not None

    # -- what clients and coordinators do --------------------------------------------------------

    def _append(self, producer_id: int, count: int, *, transactional: bool, codec: Codec) -> None:
        producer = self.producer(producer_id)
        self.counter += 1
        values = [f"{self.counter}/{n}".encode() for n in range(count)]
        sent = batch_of(
            *values,
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            is_transactional=transactional,
            codec=codec,
        )
        result = self.log.append_as_leader(RecordBatches.read(sent), leader_epoch=0)
        assert result.error is ErrorCode.NONE, result
        producer.sequence += count
        self.entries += [
            Entry(result.base_offset + n, producer_id, value, transactional, result.base_offset)
            for n, value in enumerate(values)
        ]

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3), codec=st.sampled_from(list(Codec)[:2]))
    def send_in_transaction(self, producer_id: int, count: int, codec: Codec) -> None:
        self._append(producer_id, count, transactional=True, codec=codec)

    @rule(count=st.integers(1, 3))
    def send_outside_of_transactions(self, count: int) -> None:
        self._append(99, count, transactional=False, codec=Codec.NONE)

    @rule(producer_id=PRODUCERS, is_commit=st.booleans(), own_epoch=st.booleans())
    def end_transaction(self, producer_id: int, is_commit: bool, own_epoch: bool) -> None:
        """End an open transaction, or an empty one; by either version's rule."""
        producer = self.producer(producer_id)
        if own_epoch:
            producer.epoch += 1
            producer.sequence = 0
        kind = ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT
        sent = encode_end_txn_batch(
            EndTxnMarker(kind, 1),
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            timestamp_ms=START_MS,
        )
        result = self.log.append_as_leader(
            RecordBatches.read(sent),
            leader_epoch=0,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=2 if own_epoch else 1,
        )
        assert result.error is ErrorCode.NONE, result
        offset = result.base_offset
        self.entries.append(Entry(offset, producer_id, None, True, offset, is_commit))

    @rule(order=st.permutations([1, 2, 3]), outcomes=st.tuples(*[st.booleans()] * 3))
    def overlap(self, order: list[int], outcomes: tuple[bool, bool, bool]) -> None:
        """Transactions that begin in one order and end in another."""
        for producer_id in sorted(order):
            self._append(producer_id, 1, transactional=True, codec=Codec.NONE)
        for producer_id, is_commit in zip(order, outcomes, strict=True):
            self.end_transaction(producer_id, is_commit, own_epoch=True)

    # -- replication -----------------------------------------------------------------------------

    @rule(share=st.floats(0, 1))
    def replicate(self, share: float) -> None:
        """The follower fetches some of what it lacks, and hears of the high watermark."""
        follower = self.follower.log
        end = follower.log_end_offset
        goal = end + int((self.log.log_end_offset - end) * share + 0.999)
        while follower.log_end_offset < goal:
            result = self.log.read(follower.log_end_offset, max_bytes=200)
            if result.verification is not None:
                result.verification.run()
                result = self.log.finish_verification(result)
            assert not isinstance(result.records, bytes)
            data = bytearray(result.records.read())
            result.records.release()
            assert follower.append_as_follower(data, leader_epoch=0).error is ErrorCode.NONE
        follower.update_high_watermark(self.log.high_watermark)

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        """The high watermark moves, at most to where the follower is."""
        log = self.log
        limit = self.follower.log.log_end_offset
        if limit > log.high_watermark:
            moved = log.high_watermark + int((limit - log.high_watermark) * share + 0.999)
            log.update_high_watermark(self.batch_end(moved))

    def batch_end(self, offset: int) -> int:
        """Replicas have whole batches: so does what is committed."""
        starts = {entry.batch_start for entry in self.entries} | {self.log.log_end_offset}
        return min(start for start in starts if start >= offset)

    @rule()
    def catch_up(self) -> None:
        self.replicate(1)
        self.commit(1)
        self.replicate(1)

    @rule(share=st.floats(0, 1), behind=st.booleans())
    def cut(self, share: float, behind: bool) -> None:
        """A new leader has less: both logs lose what was not committed from somewhere on. The
        producers go on from what is left.
        """
        low, high = self.log.high_watermark, self.log.log_end_offset
        offset = low + int((high - low) * share)
        starts = {entry.batch_start for entry in self.entries} | {high}
        while offset not in starts and offset > low:
            offset -= 1
        if offset not in starts:
            return
        for replica in [self.leader, self.follower][behind:]:
            replica.cut(offset)
        if behind:
            return  # a follower that has diverged fetches again
        self.entries = [entry for entry in self.entries if entry.offset < offset]
        for producer_id, producer in self.producers.items():
            known = self.log.producer_state.producers.get(producer_id)
            # Above what any reader has seen: where a producer stands after the loss is its own
            # affair.
            producer.epoch += 1
            producer.sequence = 0
            assert known is None or known.producer_epoch < producer.epoch

    # -- what else happens to logs ---------------------------------------------------------------

    @rule(clean=st.booleans(), flush=st.booleans(), of_follower=st.booleans())
    def restart(self, clean: bool, flush: bool, of_follower: bool) -> None:
        (self.follower if of_follower else self.leader).restart(clean=clean, flush=flush)

    @rule()
    def roll(self) -> None:
        if self.log.segments.active.size_bytes:
            self.log.roll()

    @precondition(lambda self: self.log.high_watermark > self.log.log_start_offset)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        log = self.log
        limit = min(log.high_watermark, self.follower.log.high_watermark)
        offset = log.log_start_offset + int((limit - log.log_start_offset) * share)
        if offset <= log.log_start_offset:
            return
        assert log.delete_records(offset) == (ErrorCode.NONE, offset)
        self.follower.log.advance_log_start_offset(offset)

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def undecided_transactions_hold_readers_back(self) -> None:
        for replica in (self.leader, self.follower):
            log = replica.log
            entries = [entry for entry in self.entries if entry.offset < log.log_end_offset]
            least = last_stable(entries, log, log.high_watermark)
            most = last_stable(entries, log, max(log.high_watermark, replica.exact_from))
            assert least <= log.last_stable_offset <= most

    def teardown(self) -> None:
        self.read_all()
        self.replicate(1)
        self.commit(1)
        self.replicate(1)
        self.read_all()

    def read_all(self) -> None:
        """Every reader, from the beginning to the last stable offset."""
        for replica in (self.leader, self.follower):
            log = replica.log
            entries = [entry for entry in self.entries if entry.offset < log.log_end_offset]
            expected = committed(entries, log.log_start_offset, log.last_stable_offset)
            got = [(each.offset, each.value) for each in read_committed(log, max_bytes=300)]
            assert got == expected

    @rule(share=st.floats(0, 1), max_bytes=st.integers(1, 2000), of_follower=st.booleans())
    def read_from_the_middle(self, share: float, max_bytes: int, of_follower: bool) -> None:
        log = (self.follower if of_follower else self.leader).log
        start, end = log.log_start_offset, log.last_stable_offset
        offset = start + int((end - start) * share)
        entries = [entry for entry in self.entries if entry.offset < log.log_end_offset]
        got = [
            (each.offset, each.value) for each in read_committed(log, offset, max_bytes=max_bytes)
        ]
        assert got == committed(entries, offset, end)


def open_since(entries: list[Entry], producer_id: int) -> int | None:
    first = None
    for entry in entries:
        if entry.producer_id == producer_id and entry.transactional:
            if entry.is_commit is not None:
                first = None
            elif first is None:
                first = entry.offset
    return first


def last_stable(entries: list[Entry], log: Log, decided_below: int) -> int:
    """The first offset of a transaction without a marker below `decided_below`."""
    decided = [
        entry for entry in entries if entry.is_commit is None or entry.offset < decided_below
    ]
    undecided = [
        first
        for producer_id in {entry.producer_id for entry in decided}
        if (first := open_since(decided, producer_id)) is not None
    ]
    return max(min([*undecided, log.high_watermark]), log.log_start_offset)


def committed(entries: list[Entry], start: int, end: int) -> list[tuple[int, bytes | None]]:
    """The records in [start, end) that are outside of transactions or in committed ones."""
    found = []
    for index, entry in enumerate(entries):
        if entry.is_commit is not None or not start <= entry.offset < end:
            continue
        is_committed: bool | None = True
        if entry.transactional:
            is_committed = next(
                (
                    later.is_commit
                    for later in entries[index:]
                    if later.producer_id == entry.producer_id and later.is_commit is not None
                ),
                None,
            )
        assert is_committed is not None, "nothing undecided is below the last stable offset"
        if is_committed:
            found.append((entry.offset, entry.value))
    return found


TestTransactionHistories = HistoryMachine.TestCase
TestTransactionHistories.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, print_blob=True
)
