"""The ledger's reading and writing, where brokers are slow, cut in pieces or have moved on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from moldau.client import (
    AuthorizationFailed,
    InvalidRecord,
    KafkaError,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from moldau.client.sync import Admin
from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.records import Record
from moldau.spark_connector.core.commit_protocol import WriteLedger
from moldau.spark_connector.core.ledger import SinkRecord, decided, encode, finished_key
from moldau.spark_connector.errors import LedgerUnusable
from moldau.spark_connector.sink import ledger_store
from moldau.spark_connector.sink.ledger_store import TOPIC_CONFIGS, LedgerStore
from tests.fake_broker import AnswerError, FakeCluster, Run, ThreadedCluster

from .ledger_cluster import LEDGER, ledger_of, newest, options_of

pytestmark = pytest.mark.real


def test_a_ledger_that_comes_in_pieces_is_read_to_its_end() -> None:
    """The time limit is that of each piece."""
    records = {name: SinkRecord(name, f"driver of {name}") for name in ("a", "b", "c")}
    with ledger_of({name: encode(each) for name, each in records.items()}) as threaded:
        given = {"kafka.max.partition.fetch.bytes": "1", "kafka.fetch.max.bytes": "1"}
        options = options_of(threaded.cluster, "c", **given)
        with Admin(config=options.admin_config()) as admin:
            store = LedgerStore(options, "c", admin)
            assert store.take(is_fencing=False).record == records["c"]
            assert store.whole().sink_ids() == ["a", "b", "c"]
        fetches = threaded.call(lambda cluster: cluster.recorder.count(ApiKey.FETCH))
        assert fetches >= len(records)


def abortable(cluster: FakeCluster) -> None:
    cluster.fault(ApiKey.END_TXN, AnswerError(ErrorCode.TRANSACTION_ABORTABLE))


def fenced(cluster: FakeCluster) -> None:
    """Another driver takes the ledger just before the commit."""
    cluster.fault(ApiKey.END_TXN, Run(lambda: cluster.transactions.fence("s.ledger")))


@pytest.mark.parametrize("fault", [None, fenced, abortable])
def test_a_write_counts_when_its_transaction_was_committed(
    fault: Callable[[FakeCluster], None] | None,
) -> None:
    record = SinkRecord("s", "token")
    with ledger_of({}) as threaded:
        options = options_of(threaded.cluster, "s")
        with Admin(config=options.admin_config()) as admin:
            store = LedgerStore(options, "s", admin)
            assert not store.write(WriteLedger(record)), "nothing was taken"
            assert store.take(is_fencing=True).record is None
            if fault is not None:
                threaded.call(fault)
            assert store.write(WriteLedger(record)) is (fault is None)
            store.close()
            assert store.take(is_fencing=False).record == (record if fault is None else None)
        assert newest(threaded) == ({"s": encode(record)} if fault is None else {})


@contextmanager
def store_of(threaded: ThreadedCluster, **given: str) -> Iterator[LedgerStore]:
    """The ledger of the sink `s`."""
    options = options_of(threaded.cluster, "s", **given)
    with (
        Admin(config=options.admin_config()) as admin,
        closing(LedgerStore(options, "s", admin)) as store,
    ):
        yield store


# -- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api_key", "code", "error"),
    [
        (ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, AuthorizationFailed),
        (ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE, RecordTooLarge),
        (ApiKey.PRODUCE, ErrorCode.INVALID_RECORD, InvalidRecord),
        (ApiKey.END_TXN, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationFailed),
    ],
)
def test_a_write_that_no_other_attempt_helps_is_an_error(
    api_key: ApiKey, code: ErrorCode, error: type[KafkaError]
) -> None:
    with ledger_of({}) as threaded, store_of(threaded) as store:
        store.take(is_fencing=True)
        threaded.call(lambda fake: fake.fault(api_key, AnswerError(code), times=None))
        with pytest.raises(error):
            store.write(WriteLedger(SinkRecord("s", "token")))
        threaded.call(lambda fake: fake.faults.clear())
        store.take(is_fencing=True)
        assert newest(threaded) == {}
        assert store.write(WriteLedger(SinkRecord("s", "later")))


def ended(cluster: FakeCluster) -> None:
    """Another driver's taking has ended the transaction while the commit was under way."""
    cluster.fault(ApiKey.END_TXN, AnswerError(ErrorCode.INVALID_TXN_STATE))


@pytest.mark.parametrize("fault", [fenced, abortable, ended])
def test_after_a_write_that_did_not_count_none_counts_before_the_next_taking(
    fault: Callable[[FakeCluster], None],
) -> None:
    record = SinkRecord("s", "token")
    with ledger_of({}) as threaded, store_of(threaded) as store:
        store.take(is_fencing=True)
        threaded.call(fault)
        assert store.write(WriteLedger(record)) is False
        assert store.write(WriteLedger(record)) is False
        assert store.take(is_fencing=True).record is None
        assert store.write(WriteLedger(record)) is True
        assert newest(threaded) == {"s": encode(record)}


def test_a_write_holds_the_sinks_record_and_the_batch_that_leaves_it() -> None:
    batch = decided("q", 3, [], 1, 1).done()
    key = finished_key("s", "q")
    with ledger_of({}) as threaded, store_of(threaded) as store:
        store.take(is_fencing=True)
        assert store.write(WriteLedger(SinkRecord("s", "token"), batch))
        leaving = encode(SinkRecord("s", "token", batch))
        assert newest(threaded) == {"s": encode(SinkRecord("s", "token")), key: leaving}
        view = store.take(is_fencing=False)
        assert (view.record, view.finished) == (SinkRecord("s", "token"), {"q": batch})
        assert store.write(WriteLedger(SinkRecord("s", "token"), is_tombstone=True))
        assert newest(threaded) == {key: leaving}


# -- reading ------------------------------------------------------------------------------------

TWO = {"s": encode(SinkRecord("s", "token")), "o": encode(SinkRecord("o", "other"))}


def test_a_ledger_that_ends_before_where_it_was_read_to_is_refused() -> None:
    """An unclean election has cut it: a decision may have been there."""
    with ledger_of(TWO) as threaded, store_of(threaded) as store:
        store.take(is_fencing=False)
        store.take(is_fencing=False)
        threaded.call(lambda fake: fake.log(LEDGER).truncate_to(1))
        with pytest.raises(LedgerUnusable, match="ends at 1, and was read to 2 before"):
            store.take(is_fencing=False)


def test_a_ledger_that_begins_behind_where_it_was_read_to_is_refused() -> None:
    with ledger_of(TWO) as threaded, store_of(threaded) as store:
        store.take(is_fencing=False)

        def delete(fake: FakeCluster) -> None:
            for _ in range(3):
                fake.log(LEDGER).append_records([Record(0, fake.now_ms(), b"s", b"lost")])
            fake.log(LEDGER).delete_before(4)

        threaded.call(delete)
        with pytest.raises(LedgerUnusable, match="has lost what was decided"):
            store.take(is_fencing=False)


def test_records_without_a_key_say_nothing() -> None:
    with ledger_of(TWO) as threaded, store_of(threaded) as store:
        nothing = Record(0, threaded.call(lambda fake: fake.now_ms()), None, b"what")
        threaded.call(lambda fake: fake.log(LEDGER).append_records([nothing]))
        assert store.take(is_fencing=False).record == SinkRecord("s", "token")
        assert store.whole().sink_ids() == ["o", "s"]


# -- the topic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_a_ledger_topic_that_is_missing_is_made(is_overtaken: bool) -> None:
    """Or another sink has made it just then."""
    with (
        ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded,
        store_of(threaded) as store,
    ):
        if is_overtaken:
            making = Run(lambda: threaded.cluster.create_topic(LEDGER))
            threaded.call(lambda fake: fake.fault(ApiKey.CREATE_TOPICS, making))
        store.prepare_topic()
        made = threaded.call(lambda fake: fake.topics[LEDGER])
        assert len(made.partitions) == 1
        assert made.configs == ({} if is_overtaken else TOPIC_CONFIGS)


@pytest.mark.parametrize("policy", ["compact", " compact ", None])
def test_a_ledger_topic_that_is_compacted_is_taken_as_it_is(policy: str | None) -> None:
    with ledger_of({}) as threaded, store_of(threaded) as store:
        threaded.call(lambda fake: fake.topics[LEDGER].configs.clear())
        if policy is not None:
            given = {"cleanup.policy": policy}
            threaded.call(lambda fake: fake.topics[LEDGER].configs.update(given))
        store.prepare_topic()
        assert threaded.call(lambda fake: fake.recorder.count(ApiKey.CREATE_TOPICS)) == 0


def test_a_ledger_topic_whose_settings_may_not_be_seen_is_taken_as_it_is() -> None:
    error = AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with ledger_of({}) as threaded, store_of(threaded) as store:
        threaded.call(lambda fake: fake.topics[LEDGER].configs.update({"cleanup.policy": "delete"}))
        threaded.call(lambda fake: fake.fault(ApiKey.DESCRIBE_CONFIGS, error, times=None))
        store.prepare_topic()
        assert threaded.call(lambda fake: fake.recorder.count(ApiKey.DESCRIBE_CONFIGS)) == 1


def test_a_ledger_topic_that_no_broker_knows_is_waited_for_no_longer_than_for_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def describe(_admin: Admin, names: list[str]) -> None:
        asked.append(names)
        raise UnknownTopicOrPartition("not here")

    monkeypatch.setattr(Admin, "describe_topics", describe)
    monkeypatch.setattr(ledger_store, "SPREAD_PAUSE_S", 0.01)
    with ledger_of({}) as threaded:
        given = {"kafka.default.api.timeout.ms": "100"}
        with store_of(threaded, **given) as store, pytest.raises(LedgerUnusable, match="is gone"):
            store.take(is_fencing=False)
    assert 1 <= len(asked) <= 11
