"""The ledger's reading and writing, where brokers are slow, cut in pieces or have moved on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moldau.client.sync import Admin
from moldau.protocol import ApiKey, ErrorCode
from moldau.spark_connector.core.commit_protocol import WriteLedger
from moldau.spark_connector.core.ledger import SinkRecord, encode
from moldau.spark_connector.sink.ledger_store import LedgerStore
from tests.fake_broker import AnswerError, FakeCluster, Run

from .ledger_cluster import ledger_of, newest, options_of

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
