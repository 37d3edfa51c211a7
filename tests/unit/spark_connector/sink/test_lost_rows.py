"""What counts as a proof that rows are visible, or that they never will be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from moldau.client import KafkaError
from moldau.client.sync import Admin, Producer
from moldau.protocol import ApiKey, ErrorCode
from moldau.spark_connector.core.commit_protocol import Sight
from moldau.spark_connector.core.ledger import Range, Slot
from moldau.spark_connector.sink import driver
from moldau.spark_connector.sink.driver import sight_of
from moldau.spark_connector.sink.rows import checksum_of
from tests.fake_broker import AnswerError

from .ledger_cluster import ledger_of, options_of

pytestmark = pytest.mark.real


@pytest.mark.parametrize("ranges", [(), (Range("t", 0, -1, 1),)])
def test_nothing_is_proved_by_rows_that_lie_nowhere(ranges: tuple[Range, ...]) -> None:
    """A broker that has taken a batch twice does not say where it lies."""
    slot = Slot(0, "s.w.0.0", 1, 1, 1, 1, ranges)
    with ledger_of({}) as threaded:
        options = options_of(threaded.cluster, "s")
        with Admin(config=options.admin_config()) as admin:
            assert sight_of(options, slot, admin, 1_000.0) is Sight.UNKNOWN


@pytest.mark.parametrize(
    ("ends", "sight"), [("commit", Sight.VISIBLE), ("abort", Sight.ABORTED), ("", Sight.UNKNOWN)]
)
def test_rows_up_to_the_end_of_the_log(ends: str, sight: Sight) -> None:
    """Nothing is behind them: a proof all the same, but never while they may still be committed."""
    with ledger_of({}) as threaded:
        options = options_of(threaded.cluster, "s")
        config = options.producer_config(transactional_id="s.w.0.0", linger_ms=0)
        with Producer(config=config) as producer, Admin(config=options.admin_config()) as admin:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(3):
                producer.send("t", b"%d" % number)
            producer.flush()
            if ends:
                getattr(producer, f"{ends}_transaction")()
            # Another row lies elsewhere, so that the checksum says nothing about these.
            slot = Slot(0, "s.w.0.0", 1, 1, 4, 1, (Range("t", 0, 0, 3),))
            assert sight_of(options, slot, admin, 100.0) is sight
            if not ends:
                producer.abort_transaction()
                asked = threaded.call(lambda fake: fake.recorder.count(ApiKey.LIST_OFFSETS))
                assert asked <= 3, "brokers are asked every now and then, not all the time"


VALUES = [b"0", b"1", b"2", b"3", b"4"]


def is_beyond(ranges: tuple[Range, ...]) -> bool:
    return any(each.first_offset + each.row_count > len(VALUES) for each in ranges)


def sum_of(*values: bytes) -> int:
    return checksum_of(pa.RecordBatch.from_arrays([pa.array(values)], names=["value"]))


FIRST, REST = Range("t", 0, 0, 3), Range("t", 0, 3, 2)
NOWHERE = Range("t", 0, -1, 1)


@pytest.mark.parametrize(
    ("ranges", "rows", "checksum", "sight"),
    [
        ((FIRST,), 3, sum_of(*VALUES[:3]), Sight.VISIBLE),
        ((FIRST,), 3, 1, Sight.UNKNOWN),
        ((REST, FIRST), 5, sum_of(*VALUES), Sight.VISIBLE),
        ((REST, FIRST), 5, sum_of(*VALUES) + 1, Sight.UNKNOWN),
        ((FIRST, NOWHERE), 4, 1, Sight.VISIBLE),
        ((FIRST,), 4, 1, Sight.VISIBLE),
        ((Range("t", 0, 4, 2), FIRST), 5, 1, Sight.UNKNOWN),
    ],
    ids=[
        *("all of them", "other rows", "in two places", "other rows in two places"),
        *("a place is unknown", "a place was not kept", "not written yet"),
    ],
)
def test_the_checksum_counts_where_all_places_are_known(
    monkeypatch: pytest.MonkeyPatch,
    ranges: tuple[Range, ...],
    rows: int,
    checksum: int,
    sight: Sight,
) -> None:
    """Rows up to the end of the log, without anything behind them, are seen as well."""
    monkeypatch.setattr(driver, "LOOK_AGAIN_MS", 20)
    with ledger_of({}) as threaded:
        threaded.call(lambda fake: fake.fill("t", VALUES))
        options = options_of(threaded.cluster, "s")
        slot = Slot(0, "s.w.0.0", 1, 1, rows, checksum, ranges)
        limit_ms = 100.0 if is_beyond(ranges) else 20_000.0
        with Admin(config=options.admin_config()) as admin:
            assert sight_of(options, slot, admin, limit_ms) is sight


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_fewer_rows_than_were_written_prove_nothing(ends: str) -> None:
    """The log was cut, and others have written there since."""
    with ledger_of({}) as threaded:
        options = options_of(threaded.cluster, "s")
        config = options.producer_config(transactional_id="s.w.0.0", linger_ms=0)
        with Producer(config=config) as producer, Admin(config=options.admin_config()) as admin:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(2):
                producer.send("t", b"%d" % number)
            producer.flush()
            getattr(producer, f"{ends}_transaction")()
            # At offset 2 is the marker of the transaction's end.
            slot = Slot(0, "s.w.0.0", 1, 1, 3, 1, (Range("t", 0, 0, 3),))
            assert sight_of(options, slot, admin, 20_000.0) is Sight.UNKNOWN


def test_rows_that_cannot_be_read_in_time_are_an_error() -> None:
    """Another start of the query looks again."""
    with ledger_of({}) as threaded:
        threaded.call(lambda fake: fake.fill("t", VALUES))
        error = AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        threaded.call(lambda fake: fake.fault(ApiKey.FETCH, error, times=None))
        options = options_of(threaded.cluster, "s")
        slot = Slot(0, "s.w.0.0", 1, 1, 3, 1, (FIRST,))
        with (
            Admin(config=options.admin_config()) as admin,
            pytest.raises(KafkaError, match="t-0 could not be read from 0 to 3 in 100 ms"),
        ):
            sight_of(options, slot, admin, 100.0)
