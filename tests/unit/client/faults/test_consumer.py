"""A consumer without a group under every error, move and loss: every record once, in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.client import Consumer, KafkaError, OffsetAndMetadata
from moldau.client.errors import AuthorizationFailed, NoOffsetForPartition, OffsetOutOfRange
from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p01_fetch import FetchRequest
from moldau.protocol.records import Record, encode_batch
from moldau.protocol.types import TopicPartition
from tests.fake_broker import (
    AnswerError,
    CutRequest,
    CutResponse,
    FakeCluster,
    Garbage,
    Run,
    Settings,
    Stall,
    WrongCorrelation,
)
from tests.unit.client.faults.harness import (
    CONSUMER,
    RETRIABLE,
    ends,
    outcome_text,
    partition,
    take,
    values_of,
)

NOT_PASSING_IN_FETCH = frozenset((ErrorCode.CORRUPT_MESSAGE,))
"""What the broker found damaged stays so: the consumer raises it."""


def _consumer(cluster: FakeCluster, **settings: Any) -> Consumer:
    return Consumer(cluster.bootstrap_servers, **{**CONSUMER, **settings})


async def _take_next(cluster: FakeCluster, consumer: Consumer, value: bytes) -> str | None:
    """Append a record and read it: what went wrong."""
    cluster.fill("t", [value])
    try:
        got = values_of(await take(consumer, 1, value.decode()))
    except (KafkaError, AssertionError) as error:
        return f"{value.decode()}: {outcome_text(error)}"
    return None if got == [value] else f"{value.decode()}: got {got}"


@pytest.mark.parametrize("level", ["partition", "top"])
async def test_every_retriable_error_of_a_fetch_is_retried(level: Any):
    failed = []
    async with FakeCluster(1, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        for code in RETRIABLE:
            if code in NOT_PASSING_IN_FETCH and level == "partition":
                continue
            fault = cluster.fault(ApiKey.FETCH, AnswerError(code, level=level))
            problem = await _take_next(cluster, consumer, code.name.encode())
            if problem is not None:
                failed.append(problem)
            if not fault.fired_count:
                failed.append(f"{code.name} was not met")
    assert failed == []


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.LIST_OFFSETS])
async def test_every_retriable_error_before_the_first_record(api_key: ApiKey):
    failed = []
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        cluster.fill("t", [b"a", b"b"])
        for code in RETRIABLE:
            fault = cluster.fault(api_key, AnswerError(code), times=2)
            try:
                async with _consumer(cluster) as consumer:
                    consumer.assign([partition(0)])
                    got = values_of(await take(consumer, 2, code.name))
                    if got != [b"a", b"b"]:
                        failed.append(f"{code.name}: got {got}")
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
            if fault.fired_count != 2:
                failed.append(f"{code.name} was met {fault.fired_count} times")
            cluster.faults.clear()
    assert failed == []


async def test_every_retriable_error_of_a_validation_is_retried():
    """After each new leader the position is looked up in its epochs (KIP-320)."""
    failed = []
    async with FakeCluster(2, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        assert await _take_next(cluster, consumer, b"first") is None
        for code in RETRIABLE:
            fault = cluster.fault(ApiKey.OFFSET_FOR_LEADER_EPOCH, AnswerError(code))
            cluster.move_leader("t", 0)
            problem = await _take_next(cluster, consumer, code.name.encode())
            if problem is not None:
                failed.append(problem)
            if not fault.fired_count:
                failed.append(f"{code.name} was not met")
            cluster.faults.clear()
    assert failed == []


@pytest.mark.parametrize("action", [
    CutRequest(20), CutRequest(20, reset=True), CutResponse(0), CutResponse(70),
    CutResponse(70, reset=True), WrongCorrelation(), Garbage(b"\x7f" * 60, framed=True),
    Garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
])  # fmt: skip
async def test_broken_connections_lose_and_repeat_nothing(action: Any):
    async with FakeCluster(1, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        faults = [cluster.fault(ApiKey.FETCH, action, nth=nth) for nth in (1, 3, 4)]
        problems = [await _take_next(cluster, consumer, b"%d" % number) for number in range(6)]
        assert problems == [None] * 6
        assert [fault.fired_count for fault in faults] == [1] * 3


@pytest.mark.parametrize("hints", [True, False])
async def test_leaders_may_move_at_any_request(hints: bool):
    settings = Settings(leader_hints=hints)
    async with (
        FakeCluster(3, topics={"t": 1}, settings=settings) as cluster,
        _consumer(cluster) as consumer,
    ):
        consumer.assign([partition(0)])
        for nth in (1, 2, 4, 6):
            cluster.fault(ApiKey.FETCH, Run(lambda: cluster.move_leader("t", 0)), nth=nth)
        problems = [await _take_next(cluster, consumer, b"%d" % n) for n in range(8)]
        assert problems == [None] * 8


async def test_a_named_leader_is_asked_once_more_not_until_metadata_come():
    """Its answer names the leader and its epoch: with the old epoch it would refuse every try."""
    async with FakeCluster(2, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        assert await _take_next(cluster, consumer, b"before") is None
        stalled = cluster.fault(ApiKey.METADATA, Stall(), times=None)
        cluster.recorder.requests.clear()
        cluster.move_leader("t", 0)
        assert await _take_next(cluster, consumer, b"after") is None
        stalled.release()
        assert cluster.recorder.count(ApiKey.FETCH) < 10


async def test_a_broker_may_stop_and_come_back():
    async with FakeCluster(2, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        assert await _take_next(cluster, consumer, b"before") is None
        await cluster.stop_node(0)
        assert await _take_next(cluster, consumer, b"at the other") is None
        await cluster.start_node(0)
        await cluster.stop_node(1)
        assert await _take_next(cluster, consumer, b"back") is None


async def test_a_session_that_the_broker_forgot_is_opened_again():
    async with FakeCluster(1, topics={"t": 2}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0), partition(1)])
        assert await _take_next(cluster, consumer, b"a") is None
        cluster.nodes[0].fetch_sessions.forget_all()
        assert await _take_next(cluster, consumer, b"b") is None
        assert any(each.session_id > 0 for each in cluster.recorder.of(FetchRequest))


async def test_a_silent_broker_is_given_up_and_asked_again():
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        _consumer(cluster, request_timeout_ms=150) as consumer,
    ):
        consumer.assign([partition(0)])
        assert await _take_next(cluster, consumer, b"a") is None
        for action in (Stall(), Stall(after_apply=True, after_bytes=30)):
            fault = cluster.fault(ApiKey.FETCH, action)
            assert await _take_next(cluster, consumer, repr(action).encode()) is None
            assert fault.fired_count == 1
            cluster.faults.remove(fault)


async def test_a_truncated_log_is_noticed_and_read_on_from_where_it_parts():
    """KIP-320: an unclean election takes records away that were read."""
    async with FakeCluster(2, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        for value in (b"a", b"b", b"c"):
            assert await _take_next(cluster, consumer, value) is None
        cluster.log("t").truncate_to(1)
        cluster.move_leader("t", 0)
        cluster.fill("t", [b"B", b"C", b"D"])
        assert values_of(await take(consumer, 3)) == [b"B", b"C", b"D"]


RESETS = [("earliest", [b"c"]), ("latest", [b"e"])]


@pytest.mark.parametrize(("reset", "expected"), RESETS)
async def test_an_offset_out_of_range_is_reset(reset: str, expected: list[bytes]):
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        for value in (b"a", b"b", b"c"):
            cluster.fill("t", [value])
        async with _consumer(cluster, auto_offset_reset=reset) as consumer:
            consumer.assign([partition(0)])
            cluster.log("t").delete_before(2)
            consumer.seek(partition(0), 0)
            polling = asyncio.ensure_future(take(consumer, 1))
            await cluster.until(lambda: cluster.recorder.count(ApiKey.LIST_OFFSETS) >= 1)
            if reset == "latest":
                await cluster.until(lambda: cluster.recorder.of(FetchRequest)[-1].session_id > 0)
                cluster.fill("t", [b"e"])
            assert values_of(await ends(polling, reset)) == expected


async def test_without_a_reset_an_offset_out_of_range_is_an_error():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        cluster.fill("t", [b"a"])
        async with _consumer(cluster, auto_offset_reset="none") as consumer:
            consumer.assign([partition(0)])
            with pytest.raises(NoOffsetForPartition, match=r"auto\.offset\.reset"):
                await ends(consumer.getone(), "no position")
            consumer.seek(partition(0), 70)
            with pytest.raises(OffsetOutOfRange, match="t-0"):
                await ends(consumer.getone(), "out of range")
            consumer.seek(partition(0), 0)
            assert (await ends(consumer.getone(), "in range")).value == b"a"


REFUSALS = [
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AuthorizationFailed),
    (ErrorCode.CORRUPT_MESSAGE, KafkaError),
]


@pytest.mark.parametrize(("code", "kind"), REFUSALS, ids=lambda each: getattr(each, "name", ""))
async def test_a_final_refusal_is_raised_and_can_be_overcome(
    code: ErrorCode, kind: type[KafkaError]
):
    async with FakeCluster(1, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        assert await _take_next(cluster, consumer, b"a") is None
        fault = cluster.fault(ApiKey.FETCH, AnswerError(code), times=None)
        with pytest.raises(kind, match="t"):
            await ends(consumer.getone(), code.name)
        cluster.faults.remove(fault)
        cluster.fill("t", [b"b"])
        assert (await ends(_overcome(consumer), code.name)).value == b"b"


async def _overcome(consumer: Consumer) -> Any:
    """The next record; answers that were on their way may still tell the old error."""
    while True:
        try:
            return await consumer.getone()
        except KafkaError:
            continue


async def test_a_damaged_batch_is_raised_with_its_place_and_can_be_skipped():
    async with FakeCluster(1, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        cluster.fill("t", [b"a"])
        damaged = encode_batch([Record(0, 1, None, b"damaged")])
        damaged[-1] ^= 1
        cluster.log("t").append_raw(bytes(damaged))
        cluster.fill("t", [b"c"])
        assert (await ends(consumer.getone(), "before")).value == b"a"
        with pytest.raises(KafkaError, match="t-0") as caught:
            await ends(consumer.getone(), "the damage")
        assert "1" in str(caught.value)
        consumer.seek(partition(0), 2)
        assert (await ends(consumer.getone(), "after")).value == b"c"


async def test_a_cancelled_poll_loses_nothing():
    async with FakeCluster(1, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        assert await _take_next(cluster, consumer, b"a") is None
        for number in range(10):
            polling = asyncio.ensure_future(consumer.getmany(timeout_ms=10_000))
            if number % 2:
                await asyncio.sleep(0)
            cluster.fill("t", [b"%d" % number])
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
        assert values_of(await take(consumer, 10)) == [b"%d" % number for number in range(10)]


async def test_a_topic_that_is_made_late_is_found():
    async with FakeCluster(1) as cluster, _consumer(cluster) as consumer:
        consumer.assign([TopicPartition("late", 0)])
        polling = asyncio.ensure_future(take(consumer, 1))
        await cluster.until(lambda: cluster.recorder.count(ApiKey.METADATA) >= 2)
        cluster.create_topic("late")
        cluster.fill("late", [b"a"])
        assert values_of(await ends(polling, "the late topic")) == [b"a"]


@pytest.mark.parametrize("moved_count", [0, 3])
async def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    moved_count: int, caplog: pytest.LogCaptureFixture
):
    """Also when its leader epochs begin below those of the former topic."""
    async with FakeCluster(2, topics={"t": 1}) as cluster, _consumer(cluster) as consumer:
        consumer.assign([partition(0)])
        for value in (b"a", b"b"):
            assert await _take_next(cluster, consumer, value) is None
        for number in range(moved_count):
            cluster.move_leader("t", 0, number % 2)
            assert await _take_next(cluster, consumer, b"%d" % number) is None
        cluster.delete_topic("t")
        cluster.create_topic("t")
        cluster.fill("t", [b"new"])
        assert values_of(await take(consumer, 1)) == [b"new"]
        assert await _take_next(cluster, consumer, b"newer") is None
    told = [each.getMessage() for each in caplog.records if "created again" in each.getMessage()]
    assert len(told) == 1


async def test_without_a_reset_a_topic_that_is_created_again_is_an_error(
    caplog: pytest.LogCaptureFixture,
):
    """There is no warning as well, of a reset that does not happen."""
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        _consumer(cluster, auto_offset_reset="none") as consumer,
    ):
        consumer.assign([partition(0)])
        consumer.seek(partition(0), 0)
        assert await _take_next(cluster, consumer, b"a") is None
        cluster.move_leader("t", 0, 0)
        assert await _take_next(cluster, consumer, b"b") is None
        cluster.delete_topic("t")
        cluster.create_topic("t")
        cluster.fill("t", [b"new"])
        with pytest.raises(NoOffsetForPartition):
            await take(consumer, 1)
        consumer.seek(partition(0), 0)
        assert values_of(await take(consumer, 1)) == [b"new"]
    assert not [each for each in caplog.records if "created again" in each.getMessage()]


async def test_a_seek_that_knows_the_topic_reads_no_other_of_its_name():
    """Another client has heard of the new topic first, and of the former one."""
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        _consumer(cluster, auto_offset_reset="none") as consumer,
    ):
        consumer.assign([partition(0)])
        consumer.seek(partition(0), 0)
        cluster.move_leader("t", 0, 0)
        assert await _take_next(cluster, consumer, b"a") is None
        former_id = consumer.positions()[partition(0)].topic_id
        assert former_id == cluster.topics["t"].topic_id
        cluster.delete_topic("t")
        cluster.create_topic("t")
        cluster.fill("t", [b"new", b"newer"])
        new_id = cluster.topics["t"].topic_id
        consumer.seek(partition(0), OffsetAndMetadata(0, topic_id=new_id))
        assert values_of(await take(consumer, 2)) == [b"new", b"newer"]
        assert consumer.positions() == {
            partition(0): OffsetAndMetadata(2, leader_epoch=0, topic_id=new_id)
        }
        consumer.seek(partition(0), OffsetAndMetadata(0, topic_id=former_id))
        with pytest.raises(NoOffsetForPartition):
            await take(consumer, 1)
        consumer.seek(partition(0), OffsetAndMetadata(1, topic_id=new_id))
        assert values_of(await take(consumer, 1)) == [b"newer"]


async def test_the_nearest_replica_is_read_and_given_up_when_it_does_not_follow():
    settings = Settings(racks={0: "a", 1: "b"})
    async with FakeCluster(2, topics={"t": 1}, settings=settings) as cluster:
        cluster.preferred_replicas[TopicPartition("t", 0)] = 1
        async with _consumer(cluster, client_rack="b") as consumer:
            consumer.assign([partition(0)])
            for value in (b"a", b"b"):
                assert await _take_next(cluster, consumer, value) is None
            assert cluster.recorder.count(ApiKey.FETCH, node_id=1) >= 1
            del cluster.preferred_replicas[TopicPartition("t", 0)]
            assert await _take_next(cluster, consumer, b"c") is None


async def test_aborted_transactions_are_left_out():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        log = cluster.log("t")
        for number, ends_well in enumerate((True, False, True, False)):
            producer = {"producer_id": 7 + number % 2, "producer_epoch": number}
            for sequence in range(2):
                value = b"%d-%d" % (number, sequence)
                batch = encode_batch(
                    [Record(0, 1, None, value)],
                    base_sequence=sequence,
                    is_transactional=True,
                    **producer,
                )
                log.append(batch, idempotent_only=False)
            log.end_transaction(**producer, commit=ends_well, timestamp_ms=1)
        cluster.fill("t", [b"plain"])
        async with _consumer(cluster, isolation_level="read_committed") as consumer:
            consumer.assign([partition(0)])
            got = values_of(await take(consumer, 5))
        assert got == [b"0-0", b"0-1", b"2-0", b"2-1", b"plain"]
