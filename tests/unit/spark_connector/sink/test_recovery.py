"""What the driver asks brokers that know less: of older releases, or without a library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from moldau.client import KafkaError
from moldau.client.sync import Producer
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.spark_connector.core.commit_protocol import (
    AbortOpen,
    CheckOpen,
    CommitSlots,
    FindOpen,
)
from moldau.spark_connector.core.ledger import Slot
from moldau.spark_connector.sink.driver import StepCarrier, serves_two_phase, slot_id
from moldau.spark_connector.sink.options import SinkOptions
from tests.fake_broker import (
    KAFKA_2_1,
    KAFKA_3_5,
    LATEST,
    FakeCluster,
    ThreadedCluster,
    limited,
)
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
    ("code", "serves"),
    [(None, True), (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False)],
)
def test_brokers_with_two_phase_commit_serve_it_to_those_that_may(
    code: ErrorCode | None, serves: bool
) -> None:
    with running(LATEST) as threaded:
        if code is not None:
            error = AnswerError(code)
            threaded.call(lambda fake: fake.fault(ApiKey.INIT_PRODUCER_ID, error, times=None))
        assert serves_two_phase(options_of(threaded.cluster), SINK) is serves
        asked = threaded.call(lambda fake: fake.recorder.of(InitProducerIdRequest))
        assert {(each.transactional_id, each.enable2_pc) for each in asked} == {
            (f"{SINK}.probe", True)
        }


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


# -- how a cluster answers ----------------------------------------------------------------------

DEAD = Slot(0, slot_id(SINK, 0, 0), 99, 0, 1, 1)
"""A transaction that was never opened."""


@contextmanager
def carrier_of(
    code: ErrorCode | None, api_key: ApiKey, versions: Versions = KAFKA_4_3
) -> Iterator[StepCarrier]:
    """A carrier on a cluster that answers one API with an error."""
    with running(versions) as threaded:
        if code is not None:
            error = AnswerError(code)
            threaded.call(lambda fake: fake.fault(api_key, error, times=None))
        with StepCarrier(options_of(threaded.cluster), SINK) as carrier:
            yield carrier


@contextmanager
def opened(carrier: StepCarrier, name: str) -> Iterator[None]:
    """A transaction of that id is open."""
    config = carrier.options.producer_config(transactional_id=name)
    with Producer(config=config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_nowait("t", b"v", partition=0)
        producer.flush()
        yield
        producer.abort_transaction()


@pytest.mark.parametrize(
    "code",
    [
        None,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ],
)
def test_a_commit_that_is_refused_for_good_is_answered_so(code: ErrorCode | None) -> None:
    other = Slot(1, slot_id(SINK, 1, 0), 98, 0, 1, 1)
    with carrier_of(code, ApiKey.END_TXN) as carrier:
        assert carrier.carry_out(CommitSlots((DEAD,))) == {DEAD.producer}
        assert carrier.carry_out(CommitSlots((DEAD, other))) == {DEAD.producer, other.producer}


def test_a_commit_that_another_principal_may_make_is_no_refusal() -> None:
    """It is an error: with rights, another start commits what was decided."""
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with carrier_of(code, ApiKey.END_TXN) as carrier:
        with pytest.raises(KafkaError, match=code.name):
            carrier.carry_out(CommitSlots((DEAD,)))
        # What cannot be aborted now ends by its time limit, or with the next start.
        carrier.carry_out(AbortOpen((DEAD.producer,)))


@pytest.mark.parametrize(
    ("code", "is_gone"),
    [
        (None, True),
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, True),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, True),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False),
    ],
)
def test_what_cannot_be_described_does_not_count_as_gone(
    code: ErrorCode | None, is_gone: bool
) -> None:
    with carrier_of(code, ApiKey.DESCRIBE_TRANSACTIONS) as carrier:
        gone = carrier.carry_out(CheckOpen((DEAD,)))
    assert gone == (frozenset({DEAD.producer}) if is_gone else frozenset())


def test_another_error_of_a_description_is_one() -> None:
    with (
        carrier_of(ErrorCode.INVALID_REQUEST, ApiKey.DESCRIBE_TRANSACTIONS) as carrier,
        pytest.raises(KafkaError, match="INVALID_REQUEST"),
    ):
        carrier.carry_out(CheckOpen((DEAD,)))


def test_an_id_that_was_opened_again_is_not_the_same_transaction() -> None:
    with carrier_of(None, ApiKey.END_TXN) as carrier, opened(carrier, slot_id(SINK, 0, 0)):
        (found,) = carrier.carry_out(FindOpen(1, 1))
        now = Slot(0, *found, 1, 1)
        older = Slot(0, found[0], found[1], found[2] - 1, 1, 1)
        assert carrier.carry_out(CheckOpen((now, older))) == {older.producer}


@pytest.mark.parametrize(
    ("task", "attempt", "tried", "is_found"),
    [(1, 3, (2, 1), True), (1, 4, (2, 1), False), (1, 4, (2, 5), True), (2, 0, (2, 5), False)],
)
def test_where_brokers_cannot_list_transactions_ids_are_tried(
    task: int, attempt: int, tried: tuple[int, int], is_found: bool
) -> None:
    """Those of all tasks, with as many attempts as Spark makes, or as were counted."""
    versions = limited(KAFKA_4_3, list_transactions=None)
    name = slot_id(SINK, task, attempt)
    with carrier_of(None, ApiKey.END_TXN, versions) as carrier, opened(carrier, name):
        found = carrier.carry_out(FindOpen(*tried))
        assert [each for each, _, _ in found] == ([name] if is_found else [])


@pytest.mark.parametrize(
    "name", ["s2.w.0.0", "as.w.0.0", "s.w.0.0.ledger", "s.w.0", "s.ledger", "s.w.a.0", "sXw.0.0"]
)
def test_what_others_have_open_is_not_the_sinks(name: str) -> None:
    with carrier_of(None, ApiKey.END_TXN) as carrier, opened(carrier, name):
        assert carrier.carry_out(FindOpen(1, 1)) == ()
