"""What the driver asks brokers that know less: of older releases, or without a library."""

from __future__ import annotations

import pytest

from moldau.client.sync import Producer
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.spark_connector.core.commit_protocol import CheckOpen, FindOpen
from moldau.spark_connector.core.ledger import Slot
from moldau.spark_connector.sink.driver import StepCarrier, serves_two_phase, slot_id
from moldau.spark_connector.sink.options import SinkOptions
from tests.fake_broker import KAFKA_2_1, KAFKA_3_5, FakeCluster, ThreadedCluster
from tests.fake_broker.faults import AnswerError
from tests.fake_broker.versions import KAFKA_4_3, Versions

pytestmark = pytest.mark.real

SINK = "s"


def options_of(cluster: FakeCluster) -> SinkOptions:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t", "sinkId": SINK}
    return SinkOptions.parse(given)


def running(versions: Versions) -> ThreadedCluster:
    return ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1}, versions=versions))


@pytest.mark.parametrize("versions", [KAFKA_2_1, KAFKA_3_5], ids=["2.1", "3.5"])
def test_brokers_before_two_phase_commit_do_not_serve_it(versions: Versions) -> None:
    with running(versions) as threaded:
        assert not serves_two_phase(options_of(threaded.cluster), SINK)


@pytest.mark.parametrize(
    ("versions", "can_tell"), [(KAFKA_2_1, False), (KAFKA_3_5, True)], ids=["2.1", "3.5"]
)
def test_open_transactions_are_found_where_brokers_tell(versions: Versions, can_tell: bool) -> None:
    """Before Apache Kafka 3.0 they do not: nothing is found, and nothing counts as gone."""
    with running(versions) as threaded:
        check_open_transactions(options_of(threaded.cluster), can_tell=can_tell)


def test_open_transactions_are_found_where_nodes_know_no_expressions() -> None:
    """`moldau dev` of a plain installation, without google-re2."""
    with running(KAFKA_4_3) as threaded:
        threaded.cluster.fault(
            ApiKey.LIST_TRANSACTIONS,
            AnswerError(ErrorCode.INVALID_REGULAR_EXPRESSION),
            times=None,
            when=lambda received: bool(received.message.transactional_id_pattern),
        )
        check_open_transactions(options_of(threaded.cluster), can_tell=True)


def check_open_transactions(options: SinkOptions, *, can_tell: bool) -> None:
    with (
        Producer(config=options.producer_config(transactional_id=slot_id(SINK, 1, 2))) as producer,
        StepCarrier(options, SINK) as carrier,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_nowait("t", b"v", partition=0)
        producer.flush()
        found = carrier.carry_out(FindOpen(2, 1))
        assert [name for name, _, _ in found] == ([slot_id(SINK, 1, 2)] if can_tell else [])
        dead = Slot(0, slot_id(SINK, 0, 0), 99, 0, 1, 1)
        gone = carrier.carry_out(CheckOpen((dead,)))
        assert gone == (frozenset({dead.producer}) if can_tell else frozenset())
        producer.abort_transaction()
