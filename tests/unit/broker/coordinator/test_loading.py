"""Loading: pieces, gaps, transactions, unknown and damaged records, a leadership that is lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from moldau.broker.coordinator.core.result import (
    CoordinatorResult,
    Producer,
    SetTimer,
    TransactionEnd,
)
from moldau.broker.coordinator.ports import RuntimeSettings
from moldau.broker.coordinator.runtime import (
    MAX_LOADING_COUNT,
    MAX_RETRY_MS,
    RETRY_MS,
    CoordinatorRuntime,
)
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    Codec,
    ControlRecordType,
    EndTxnMarker,
    Record,
    encode_batch,
    encode_end_txn_batch,
)
from tests.unit.broker.coordinator.harness import Caller, MemoryBroker, MemoryPartition
from tests.unit.broker.coordinator.toy import ToyState, commit_record, read, write

SMALL_PIECES = RuntimeSettings(load_buffer_bytes=200)
PRODUCER = Producer(9, 2)


class Loading:
    """A broker whose partitions were written by others before it leads them."""

    def __init__(self, partition_count: int = 1, settings: RuntimeSettings = SMALL_PIECES) -> None:
        self.broker = MemoryBroker(CONSUMER_OFFSETS, partition_count=partition_count)
        self.states: list[ToyState] = []
        self.loaded_result = CoordinatorResult()
        self.runtime: CoordinatorRuntime[ToyState] = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            self._make,
            lambda index, command: None,
            settings,
            self.broker.ports,
        )
        self.broker.attach(self.runtime)
        self.log = LogWriter(self.broker.partition(0))

    def _make(self, partition_index: int) -> ToyState:
        state = ToyState(partition_index)
        state.loaded_result = self.loaded_result
        self.states.append(state)
        return state

    @property
    def state(self) -> ToyState:
        return self.states[-1]

    def refusal(self, partition_index: int = 0) -> ErrorCode:
        return self.runtime.call(partition_index, read(Caller(), "g"))


class LogWriter:
    """What an earlier leader, or a cleaner, left."""

    def __init__(self, partition: MemoryPartition) -> None:
        self.partition = partition

    def records(
        self,
        *records: tuple[bytes | None, bytes | None],
        producer: Producer | None = None,
        codec: Codec = Codec.NONE,
    ) -> None:
        owner: dict[str, Any] = {}
        if producer is not None:
            owner = {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "is_transactional": True,
            }
        rows = [Record(0, 1, key, value) for key, value in records]
        self._add(
            encode_batch(rows, base_offset=self.partition.log_end_offset, codec=codec, **owner),
            len(rows),
        )

    def offset(
        self, group: str, offset: int | None, producer: Producer | None = None, **options: Any
    ) -> None:
        record = commit_record(group, offset)
        value = None
        if record.value is not None:
            value = CONSUMER_OFFSETS.encode_value(record.value, record.value_version)
        self.records((CONSUMER_OFFSETS.encode_key(record.key), value), producer=producer, **options)

    def marker(self, producer: Producer, *, is_commit: bool) -> None:
        kind = ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT
        self._add(
            encode_end_txn_batch(
                EndTxnMarker(kind, 0),
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                timestamp_ms=1,
                base_offset=self.partition.log_end_offset,
            ),
            1,
        )

    def gap(self, count: int) -> None:
        """What compaction removed, batches and all."""
        self.partition.log_end_offset += count

    def compacted(self, records: list[tuple[int, str, int]], first: int, last: int) -> None:
        """A batch of which only some records are left, at the given offsets."""
        assert first == self.partition.log_end_offset
        rows = []
        for at, group, offset in records:
            record = commit_record(group, offset)
            assert record.value is not None
            rows.append(
                Record(
                    at,
                    1,
                    CONSUMER_OFFSETS.encode_key(record.key),
                    CONSUMER_OFFSETS.encode_value(record.value, record.value_version),
                )
            )
        self._add(
            encode_batch(
                rows, base_offset=first, keep_offsets=True, last_offset_delta=last - first
            ),
            last - first + 1,
        )

    def raw(self, batch: bytearray, count: int) -> None:
        self._add(batch, count)

    def _add(self, batch: bytearray, count: int) -> None:
        self.partition.batches.append(batch)
        self.partition.log_end_offset += count


def test_a_log_of_many_pieces() -> None:
    loading = Loading()
    for number in range(100):
        loading.log.offset(f"g{number % 10}", number)
    loading.log.offset("g3", None)
    loading.broker.elect(0)
    assert loading.broker.partition(0).read_count > 40
    assert loading.state.is_loaded
    assert loading.state.offsets == {f"g{n}": 90 + n for n in range(10) if n != 3}
    assert [offset for offset, _, _ in loading.state.replayed] == list(range(101))


def test_compressed_batches() -> None:
    loading = Loading()
    loading.log.offset("g", 1, codec=Codec.GZIP)
    loading.log.offset("h", 2, codec=Codec.LZ4)
    loading.broker.elect(0)
    assert loading.state.offsets == {"g": 1, "h": 2}


def test_what_compaction_left() -> None:
    """Gaps at the start, between batches, within one, an emptied batch, and behind the last."""
    loading = Loading()
    partition = loading.broker.partition(0)
    partition.log_end_offset = partition.log_start_offset = 10
    loading.log.gap(5)
    loading.log.compacted([(17, "g", 1), (19, "h", 2)], 15, 20)
    loading.log.gap(100)
    loading.log.compacted([], 121, 125)
    loading.log.offset("i", 3)
    loading.log.gap(4)
    loading.broker.elect(0)
    assert loading.state.replayed == [(17, "g", 1), (19, "h", 2), (126, "i", 3)]
    assert loading.refusal() is ErrorCode.NONE
    caller = Caller()
    loading.runtime.call(0, write(caller, "g", 9))
    assert loading.state.replayed[-1] == (131, "g", 9)
    partition.commit()
    assert caller.answer is ErrorCode.NONE


def test_a_log_that_begins_inside_a_batch() -> None:
    loading = Loading()
    loading.log.compacted([(0, "a", 1), (1, "b", 1), (2, "c", 1)], 0, 2)
    loading.broker.partition(0).log_start_offset = 2
    loading.broker.partition(0).high_watermark = 2
    loading.broker.elect(0)
    assert loading.state.replayed == [(2, "c", 1)]


def test_transactions_of_the_log() -> None:
    loading = Loading()
    other = Producer(10, 0)
    loading.log.offset("g", 1)
    loading.log.offset("g", 2, PRODUCER)
    loading.log.offset("h", 3, other)
    loading.log.marker(PRODUCER, is_commit=True)
    loading.log.offset("g", 4, PRODUCER)
    loading.log.marker(other, is_commit=False)
    loading.log.offset("i", 5, other)
    loading.broker.elect(0)
    assert loading.state.offsets == {"g": 2}
    assert loading.state.pending == {9: {"g": 4}, 10: {"i": 5}}
    loading.runtime.complete_transaction(
        0, TransactionEnd(PRODUCER, True, 0, 0), lambda error: None
    )
    assert loading.state.offsets == {"g": 4}


def test_records_of_unknown_types_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    loading = Loading()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            loading.log.records((b"\x03\xe7whatever", b"\x00\x00"))
        loading.log.records((b"\xff\xff", None))
        loading.log.offset("g", 1)
        loading.broker.elect(0)
    assert loading.state.offsets == {"g": 1}
    assert [record.message.partition(" are")[0] for record in caplog.records] == [
        "__consumer_offsets-0: records of the unknown type 999",
        "__consumer_offsets-0: records of the unknown type -1",
    ]


KEY = CONSUMER_OFFSETS.encode_key(commit_record("g", 1).key)


@pytest.mark.parametrize(
    "record",
    [
        (None, b"\x00\x00"),
        (b"", b"\x00\x00"),
        (b"\x00", b"\x00\x00"),
        (KEY[:-1], None),
        (KEY + b"x", None),
        (KEY, b""),
        (KEY, b"\x00\x63"),
        (KEY, b"\x00\x03\x00\x00"),
    ],
)
def test_what_does_not_decode_fails_the_partition_loudly(
    record: tuple[bytes | None, bytes | None], caplog: pytest.LogCaptureFixture
) -> None:
    loading = Loading(partition_count=2)
    loading.log.offset("g", 1)
    loading.log.records(record)
    with caplog.at_level(logging.ERROR):
        loading.broker.elect_all()
    assert "__consumer_offsets-0 cannot be loaded" in caplog.text
    assert loading.refusal(0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert loading.refusal(1) is ErrorCode.NONE, "the other partition is served"
    loading.broker.depose(0)
    assert loading.refusal(0) is ErrorCode.NOT_COORDINATOR


def test_a_bug_in_replay_fails_the_partition_and_is_reported() -> None:
    loading = Loading()
    loading.log.offset("poison", 1)
    original = loading.runtime._make_state

    def make(partition_index: int) -> ToyState:
        state = original(partition_index)
        state.fails_on = "poison"
        return state

    loading.runtime._make_state = make
    with pytest.raises(ValueError, match="poison"):
        loading.broker.elect(0)
    assert loading.refusal() is ErrorCode.COORDINATOR_NOT_AVAILABLE


# -- while it loads ------------------------------------------------------------------------------


def test_requests_while_it_loads() -> None:
    loading = Loading()
    loading.broker.is_loading_held = True
    loading.log.offset("g", 1)
    loading.broker.elect(0)
    assert loading.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert loading.runtime.is_loading
    assert loading.runtime.coordinator_epoch(0) == -1
    loading.broker.load_on()
    assert loading.refusal() is ErrorCode.NONE
    assert not loading.runtime.is_loading


def test_leadership_lost_while_it_loads() -> None:
    """Also to itself, in a later epoch: the half-loaded state is thrown away."""
    loading = Loading()
    for number in range(300):
        loading.log.offset("g", number)
    partition = loading.broker.partition(0)
    reads = 0

    def lose() -> None:
        nonlocal reads
        reads += 1
        if reads == 2:
            loading.broker.depose(0)

    partition.on_read = lose
    loading.broker.elect(0)
    assert loading.refusal() is ErrorCode.NOT_COORDINATOR
    assert not loading.state.is_loaded
    assert not loading.state.is_unloaded, "nobody could wait in it"
    assert partition.read_count == 2
    loading.broker.elect(0)
    assert loading.state.is_loaded
    assert len(loading.states) == 2
    assert loading.state.offsets == {"g": 299}


def test_leadership_lost_and_won_while_it_loads() -> None:
    loading = Loading()
    for number in range(50):
        loading.log.offset(f"g{number}", number)
    partition = loading.broker.partition(0)

    def lose_and_win() -> None:
        partition.on_read = None
        loading.broker.depose(0, keep=40)
        loading.broker.elect(0)

    partition.on_read = lose_and_win
    loading.broker.elect(0)
    assert [state.is_loaded for state in loading.states] == [False, True]
    assert len(loading.state.offsets) == 40


def test_a_log_that_cannot_be_read_now_is_tried_again() -> None:
    loading = Loading()
    loading.log.offset("g", 1)
    partition = loading.broker.partition(0)
    partition.read_error = ErrorCode.KAFKA_STORAGE_ERROR
    loading.broker.elect(0)
    assert loading.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    loading.broker.advance(RETRY_MS * 3)
    assert loading.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for _ in range(100):
        loading.broker.advance(1_000)
    assert partition.read_count < 70, "less and less often"
    partition.read_error = ErrorCode.NONE
    loading.broker.advance(MAX_RETRY_MS + 10)
    assert loading.refusal() is ErrorCode.NONE
    assert loading.state.replayed == [(0, "g", 1)], "from its start, in a new state"


def test_no_retry_outlives_the_leadership() -> None:
    loading = Loading()
    partition = loading.broker.partition(0)
    loading.log.offset("g", 1)
    partition.read_error = ErrorCode.KAFKA_STORAGE_ERROR
    loading.broker.elect(0)
    loading.broker.depose(0)
    made = len(loading.states)
    read_count = partition.read_count
    loading.broker.advance(RETRY_MS * 10)
    assert partition.read_count == read_count
    assert len(loading.states) == made


def test_only_so_many_load_at_once() -> None:
    loading = Loading(partition_count=MAX_LOADING_COUNT + 3)
    loading.broker.is_loading_held = True
    loading.broker.elect_all()
    assert len(loading.broker.held) == MAX_LOADING_COUNT
    loading.broker.depose(MAX_LOADING_COUNT)  # the first of those that wait their turn
    loading.broker.load_on()
    loaded = [index for index, _ in loading.runtime.states()]
    assert loaded == [n for n in range(MAX_LOADING_COUNT + 3) if n != MAX_LOADING_COUNT]


@pytest.mark.parametrize(
    ("record_count", "metadata", "turn_count"), [(2_000, "", 7), (100, "m" * 30_000, 20)]
)
def test_others_have_their_turn_while_a_big_batch_is_replayed(
    record_count: int, metadata: str, turn_count: int
) -> None:
    loading = Loading()
    record = commit_record("g", 1, metadata)
    assert record.value is not None
    row = (
        CONSUMER_OFFSETS.encode_key(record.key),
        CONSUMER_OFFSETS.encode_value(record.value, record.value_version),
    )
    loading.log.records(*[row] * record_count)
    loading.broker.is_loading_held = True
    loading.broker.elect(0)
    turns = 0
    while loading.broker.held and loading.broker.step_load():
        turns += 1
    assert turns >= turn_count
    assert len(loading.state.replayed) == record_count


def test_what_loading_leads_to_is_carried_out() -> None:
    loading = Loading()
    loading.loaded_result = CoordinatorResult(
        records=[commit_record("made at load", 1)], timers=[SetTimer("t", 10)]
    )
    loading.log.offset("g", 1)
    loading.broker.elect(0)
    assert loading.state.offsets == {"g": 1, "made at load": 1}
    loading.broker.advance(20)
    assert loading.state.timers_run == ["t"]


def test_loading_is_measured() -> None:
    loading = Loading(partition_count=3)
    loading.broker.elect(0)
    loading.broker.is_loading_held = True
    loading.broker.elect(1)
    prefix = "kafka.server:type=group-coordinator-metrics,name="
    registry = loading.broker.registry

    def count(state: str) -> float:
        return next(
            each.instrument.value
            for each in registry.collect()
            if (each.name, each.labels) == (f"{prefix}num-partitions", (("state", state),))
        )

    assert (count("active"), count("loading"), count("failed")) == (1, 1, 0)
    assert registry.histogram(f"{prefix}partition-load-time-ms").count == 1
    loading.broker.load_on()
    assert (count("active"), count("loading"), count("failed")) == (2, 0, 0)
