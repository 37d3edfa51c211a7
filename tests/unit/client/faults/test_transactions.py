"""Transactions under every error, move and loss: all of a transaction or nothing, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.client import KafkaError, OffsetAndMetadata, Producer
from moldau.client.errors import ProducerFenced, TransactionAbortable
from moldau.protocol import ApiKey, ErrorCode
from tests.fake_broker import (
    AnswerError,
    CutRequest,
    CutResponse,
    FakeCluster,
    Run,
    Settings,
    Stall,
)
from tests.unit.client.faults.harness import (
    PRODUCER,
    RETRIABLE,
    delivered,
    ends,
    outcome_text,
    partition,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2])

APIS = {
    1: (
        ApiKey.FIND_COORDINATOR,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.PRODUCE,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    ),
    2: (
        ApiKey.FIND_COORDINATOR,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.PRODUCE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    ),
}
CASES = pytest.mark.parametrize(
    ("version", "api_key"),
    [(version, api_key) for version, apis in APIS.items() for api_key in apis],
    ids=lambda each: getattr(each, "name", f"TV{each}"),
)

NOT_FOR = frozenset(
    {
        # The producer's own answer to it is another one: the transaction is over.
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNSTABLE_OFFSET_COMMIT),
    }
)


def _producer(cluster: FakeCluster, transactional_id: str = "x", **settings: Any) -> Producer:
    return Producer(
        cluster.bootstrap_servers,
        **{**PRODUCER, "transactional_id": transactional_id, **settings},
    )


def _cluster(version: int, node_count: int = 2) -> FakeCluster:
    return FakeCluster(node_count, topics={"t": 2}, settings=Settings(transaction_version=version))


async def _run(producer: Producer, name: str, number: int) -> None:
    """One transaction: a record in each partition and the group's offset."""
    async with producer.transaction():
        for index in range(2):
            producer.send_nowait("t", f"{name}-{index}".encode(), partition=index)
        await producer.send_offsets({partition(0): OffsetAndMetadata(number)}, group="g")


def _check(cluster: FakeCluster, names: list[str]) -> None:
    """Each transaction is stored, whole and once, and nothing is open."""
    committed = delivered(cluster, "t", committed_only=True)
    assert committed == [f"{name}-{index}".encode() for index in range(2) for name in names]
    assert cluster.groups.committed("g", "t") == len(names)
    for each in cluster.topics["t"].partitions:
        assert each.log.open_transactions == {}


@CASES
async def test_every_retriable_error_is_retried(version: int, api_key: ApiKey):
    failed = []
    names = []
    async with _cluster(version) as cluster:
        for code in RETRIABLE:
            if (api_key, code) in NOT_FOR:
                continue
            fault = cluster.fault(api_key, AnswerError(code))
            try:
                async with _producer(cluster) as producer:
                    await ends(_run(producer, code.name, len(names) + 1), code.name)
                names.append(code.name)
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
            if not fault.fired_count:
                failed.append(f"{code.name} was not met")
            cluster.faults.clear()
        assert failed == []
        _check(cluster, names)


@CASES
@pytest.mark.parametrize("action", [CutRequest(30), CutResponse(0), CutResponse(7)])
async def test_lost_connections_lose_and_double_nothing(version: int, api_key: ApiKey, action: Any):
    names = ["first", "second", "third"]
    async with _cluster(version) as cluster:
        fault = cluster.fault(api_key, action)
        async with _producer(cluster) as producer:
            for number, name in enumerate(names, start=1):
                await ends(_run(producer, name, number), f"transaction {name}")
        assert fault.fired_count == 1
        _check(cluster, names)


@VERSIONS
async def test_coordinators_may_move_at_any_request(version: int):
    for api_key in APIS[version]:
        for kind, key in (("transaction", "x"), ("group", "g")):
            async with _cluster(version) as cluster:
                cluster.fault(
                    api_key, Run(lambda c=cluster, k=kind, i=key: c.move_coordinator(k, i))
                )
                async with _producer(cluster) as producer:
                    for number in (1, 2):
                        what = f"{api_key.name}, {kind} moves, transaction {number}"
                        await ends(_run(producer, f"n{number}", number), what)
                _check(cluster, ["n1", "n2"])


@VERSIONS
async def test_leaders_may_move_at_any_request(version: int):
    for nth in range(1, 5):
        async with _cluster(version) as cluster:
            cluster.fault(ApiKey.PRODUCE, Run(lambda c=cluster: c.move_leader("t", 0)), nth=nth)
            async with _producer(cluster) as producer:
                for number in (1, 2):
                    await ends(_run(producer, f"n{number}", number), f"transaction {number}")
            _check(cluster, ["n1", "n2"])


@VERSIONS
async def test_an_exception_aborts(version: int):
    async with _cluster(version) as cluster:
        async with _producer(cluster) as producer:
            with pytest.raises(ZeroDivisionError):
                await _fail(producer)
            await ends(_run(producer, "after", 1), "the next transaction")
        _check(cluster, ["after"])
        assert cluster.transactions.find("x").abort_count == 1  # type: ignore[union-attr]


async def _fail(producer: Producer) -> None:
    async with producer.transaction():
        await producer.send("t", b"aborted", partition=0)
        raise ZeroDivisionError


ABORTABLE = [
    (ApiKey.PRODUCE, ErrorCode.TRANSACTION_ABORTABLE),
    (ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (ApiKey.PRODUCE, ErrorCode.INVALID_RECORD),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.TRANSACTION_ABORTABLE),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_MEMBER_ID),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.END_TXN, ErrorCode.TRANSACTION_ABORTABLE),
]


@pytest.mark.parametrize(
    ("version", "api_key", "code"),
    [(version, *case) for version in APIS for case in ABORTABLE if case[0] in APIS[version]],
    ids=lambda each: getattr(each, "name", f"TV{each}"),
)
async def test_what_spoils_a_transaction_leaves_the_producer_usable(
    version: int, api_key: ApiKey, code: ErrorCode
):
    async with _cluster(version) as cluster, _producer(cluster) as producer:
        await ends(_run(producer, "before", 1), "before")
        cluster.fault(api_key, AnswerError(code))
        with pytest.raises(KafkaError) as caught:
            await ends(_run(producer, "spoilt", 99), code.name)
        assert caught.value.code in (code, ErrorCode.TRANSACTION_ABORTABLE), caught.value
        await ends(_run(producer, "after", 2), "after")
        _check(cluster, ["before", "after"])


FATAL = [
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    (ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.PRODUCER_FENCED),
    (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE),
    (ApiKey.FIND_COORDINATOR, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
]


@VERSIONS
@pytest.mark.parametrize(("api_key", "code"), FATAL, ids=lambda each: getattr(each, "name", None))
async def test_what_ends_a_producer_is_said_at_every_later_call(
    version: int, api_key: ApiKey, code: ErrorCode
):
    async with _cluster(version) as cluster, _producer(cluster) as producer:
        cluster.fault(api_key, AnswerError(code), times=None)
        with pytest.raises(KafkaError, match=code.name):
            await ends(_run(producer, "spoilt", 99), code.name)
        with pytest.raises(KafkaError):
            await ends(_run(producer, "again", 99), "the next call")
        cluster.faults.clear()
        assert delivered(cluster, "t", committed_only=True) == []


@VERSIONS
async def test_the_older_of_two_producers_is_fenced(version: int):
    async with _cluster(version) as cluster, _producer(cluster) as older:
        await ends(_run(older, "older", 1), "the older one")
        older.begin_transaction()
        await ends(older.send("t", b"open", partition=0), "the open record")
        async with _producer(cluster) as newer:
            await ends(_run(newer, "newer", 2), "the newer one")
            with pytest.raises(ProducerFenced):
                await ends(_finish(older), "the older one")
        _check(cluster, ["older", "newer"])


async def _finish(producer: Producer) -> None:
    await producer.send("t", b"zombie", partition=1)
    await producer.commit_transaction()


@VERSIONS
async def test_a_transaction_that_ran_out_of_time_raises_and_nothing_of_it_stays(version: int):
    async with _cluster(version) as cluster:
        async with _producer(cluster) as producer:
            await ends(_run(producer, "before", 1), "before")
            producer.begin_transaction()
            await ends(producer.send("t", b"late", partition=0), "the record")
            cluster.transactions.expire("x")
            with pytest.raises((ProducerFenced, TransactionAbortable)):
                await ends(producer.commit_transaction(), "the commit")
        async with _producer(cluster) as producer:
            await ends(_run(producer, "after", 2), "a new producer")
        _check(cluster, ["before", "after"])


@VERSIONS
async def test_a_forgotten_transactional_id_ends_the_producer_with_advice(version: int):
    """Another producer may have had the id before it was forgotten: to go on under a new producer
    id could do its work twice, so the producer is not to (KAFKA-18019).
    """
    advice = r"INVALID_PRODUCER_ID_MAPPING.*transactional\.id\.expiration\.ms.*make a new one"
    async with _cluster(version) as cluster:
        async with _producer(cluster) as producer:
            await ends(_run(producer, "before", 1), "before")
            cluster.transactions.forget("x")
            producer.begin_transaction()
            with pytest.raises(ProducerFenced, match=advice):
                await ends(producer.send("t", b"late", partition=0), "the record")
            for call in (producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(ProducerFenced, match=advice):
                    await ends(call(), call.__name__)
            with pytest.raises(ProducerFenced, match=advice):
                producer.begin_transaction()
        async with _producer(cluster) as producer:
            await ends(_run(producer, "after", 2), "a new producer")
        _check(cluster, ["before", "after"])


@VERSIONS
async def test_a_cancelled_commit_can_be_repeated(version: int):
    for after_apply in (False, True):
        async with _cluster(version) as cluster, _producer(cluster) as producer:
            await ends(producer.init_transactions(), "init")
            producer.begin_transaction()
            producer.send_nowait("t", b"n-0", partition=0)
            producer.send_nowait("t", b"n-1", partition=1)
            await ends(
                producer.send_offsets({partition(0): OffsetAndMetadata(1)}, group="g"), "offsets"
            )
            stalled = cluster.fault(ApiKey.END_TXN, Stall(after_apply=after_apply))
            committing = asyncio.ensure_future(producer.commit_transaction())
            await stalled.fired()
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            stalled.release()
            await ends(producer.commit_transaction(), "the second commit")
            _check(cluster, ["n"])


async def test_epochs_that_are_used_up_lead_to_a_new_producer_id():
    settings = Settings(first_producer_epoch=2**15 - 4)
    async with FakeCluster(1, topics={"t": 2}, settings=settings) as cluster:
        async with _producer(cluster) as producer:
            names = [f"n{number}" for number in range(1, 7)]
            for number, name in enumerate(names, start=1):
                await ends(_run(producer, name, number), name)
        _check(cluster, names)
        assert cluster.transactions.find("x").epoch < 2**15 - 4  # type: ignore[union-attr]
