"""The producer under every error, move and loss: everything sent once, in order."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from moldau.client import KafkaError, Producer
from moldau.client.errors import (
    AuthorizationFailed,
    DeliveryTimeout,
    InvalidRecord,
    RecordTooLarge,
)
from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p00_produce import ProduceRequest
from moldau.protocol.records import read_batch_header
from tests.fake_broker import (
    AnswerError,
    CutRequest,
    CutResponse,
    FakeCluster,
    Fault,
    Run,
    Settings,
    Stall,
)
from tests.unit.client.faults.harness import (
    PRODUCER,
    RETRIABLE,
    check_delivered,
    delivered,
    ends,
    outcome_text,
)
from tests.virtual.machine import pass_time

TRANSACTIONAL_ONLY = frozenset((ErrorCode.CONCURRENT_TRANSACTIONS,))


def _producer(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer(cluster.bootstrap_servers, **{**PRODUCER, **settings})


async def _send_each(producer: Producer, values: list[bytes], partition: int = 0) -> None:
    """All at once, so that several requests are in flight."""
    sends = [producer.send("t", value, partition=partition) for value in values]
    for metadata in await ends(asyncio.gather(*sends), "send"):
        assert metadata.partition == partition


def _numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("after_apply", [False, True])
async def test_every_retriable_answer_is_retried(idempotent: bool, after_apply: bool):
    """Without idempotence what was applied and answered with an error is doubled, as it must be."""
    failed = []
    expected: list[bytes] = []
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        _producer(cluster, enable_idempotence=idempotent) as producer,
    ):
        for code in RETRIABLE:
            value = code.name.encode()
            fault = cluster.fault(ApiKey.PRODUCE, AnswerError(code, after_apply=after_apply))
            try:
                await ends(producer.send("t", value), code.name)
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
            if not fault.fired_count:
                failed.append(f"{code.name} was not met")
            expected += [value] * (2 if after_apply and not idempotent else 1)
        assert failed == []
        check_delivered(cluster, "t", {0: expected})


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID])
async def test_every_retriable_error_before_the_first_record(api_key: ApiKey):
    failed = []
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        for code in RETRIABLE:
            fault = cluster.fault(api_key, AnswerError(code), times=2)
            try:
                async with _producer(cluster) as producer:
                    await ends(producer.send("t", code.name.encode()), code.name)
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
            if fault.fired_count != 2:
                failed.append(f"{code.name} was met {fault.fired_count} times")
        assert failed == []
        check_delivered(cluster, "t", {0: [code.name.encode() for code in RETRIABLE]})


REFUSALS = [
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AuthorizationFailed),
    (ErrorCode.INVALID_RECORD, InvalidRecord),
    (ErrorCode.RECORD_LIST_TOO_LARGE, RecordTooLarge),
    (ErrorCode.INVALID_TIMESTAMP, InvalidRecord),
    (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, KafkaError),
    (ErrorCode.POLICY_VIOLATION, KafkaError),
    (ErrorCode.UNKNOWN_SERVER_ERROR, KafkaError),
]


@pytest.mark.parametrize(("code", "kind"), REFUSALS, ids=lambda each: getattr(each, "name", ""))
async def test_a_final_refusal_fails_its_records_and_no_others(
    code: ErrorCode, kind: type[KafkaError]
):
    async with FakeCluster(1, topics={"t": 1}) as cluster, _producer(cluster) as producer:
        await _send_each(producer, [b"before"])
        cluster.fault(ApiKey.PRODUCE, AnswerError(code))
        with pytest.raises(kind, match=code.name) as caught:
            await ends(producer.send("t", b"refused"), code.name)
        assert caught.value.code == code
        await _send_each(producer, _numbered("after", 20))
        check_delivered(cluster, "t", {0: [b"before", *_numbered("after", 20)]})


async def test_many_requests_in_flight_stay_in_order_over_errors():
    """Errors at any place among five requests in flight: the very first of a new producer, too."""
    codes = itertools.cycle(
        (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.CORRUPT_MESSAGE,
        )
    )
    for place in range(1, 8):
        async with FakeCluster(1, topics={"t": 1}) as cluster:
            async with _producer(cluster, batch_size=100) as producer:
                cluster.fault(ApiKey.PRODUCE, AnswerError(next(codes)), nth=place)
                after = AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, after_apply=True)
                cluster.fault(ApiKey.PRODUCE, after, nth=place + 2)
                await _send_each(producer, _numbered(f"place-{place}", 40))
            check_delivered(cluster, "t", {0: _numbered(f"place-{place}", 40)})


async def test_without_idempotence_retries_do_not_reorder_either():
    for place in range(1, 6):
        async with FakeCluster(1, topics={"t": 1}) as cluster:
            settings = {"enable_idempotence": False, "batch_size": 100}
            async with _producer(cluster, **settings) as producer:
                cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS), nth=place)
                await _send_each(producer, _numbered("v", 40))
            check_delivered(cluster, "t", {0: _numbered("v", 40)})


@pytest.mark.parametrize("action", [CutRequest(50), CutRequest(50, reset=True), CutResponse(0),
                                    CutResponse(0, reset=True), CutResponse(11)])  # fmt: skip
async def test_lost_connections_lose_and_double_nothing(action: Any):
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with _producer(cluster, batch_size=100) as producer:
            faults = [cluster.fault(ApiKey.PRODUCE, action, nth=nth) for nth in (1, 3, 4, 9)]
            await _send_each(producer, _numbered("v", 60))
        check_delivered(cluster, "t", {0: _numbered("v", 60)})
        assert [fault.fired_count for fault in faults] == [1] * 4


@pytest.mark.parametrize("hints", [True, False])
async def test_leaders_may_move_at_any_request(hints: bool):
    settings = Settings(leader_hints=hints)
    async with FakeCluster(3, topics={"t": 2}, settings=settings) as cluster:
        async with _producer(cluster, batch_size=100) as producer:
            for nth in (1, 2, 4, 7, 11):
                cluster.fault(ApiKey.PRODUCE, Run(lambda: cluster.move_leader("t", 0)), nth=nth)
            await asyncio.gather(
                _send_each(producer, _numbered("a", 60), 0),
                _send_each(producer, _numbered("b", 60), 1),
            )
        check_delivered(cluster, "t", {0: _numbered("a", 60), 1: _numbered("b", 60)})


async def test_a_broker_may_stop_and_come_back():
    async with FakeCluster(2, topics={"t": 2}) as cluster:
        async with _producer(cluster) as producer:
            await _send_each(producer, [b"first"], 0)
            await cluster.stop_node(0)
            await _send_each(producer, _numbered("second", 20), 0)
            await cluster.start_node(0)
            cluster.move_leader("t", 0, 0)
            await cluster.stop_node(1)
            await _send_each(producer, _numbered("third", 20), 0)
        check_delivered(
            cluster, "t", {0: [b"first", *_numbered("second", 20), *_numbered("third", 20)]}
        )


async def test_a_partition_without_leader_waits_for_one():
    async with FakeCluster(1, topics={"t": 1}) as cluster, _producer(cluster) as producer:
        partition = cluster.topics["t"].partitions[0]
        partition.error = ErrorCode.LEADER_NOT_AVAILABLE
        sending = asyncio.ensure_future(producer.send("t", b"waits", partition=0))
        await cluster.until(lambda: cluster.recorder.count(ApiKey.METADATA) >= 3)
        partition.error = ErrorCode.NONE
        await ends(sending, "the send")
        check_delivered(cluster, "t", {0: [b"waits"]})


async def test_a_topic_that_is_made_late_is_waited_for():
    async with FakeCluster(1) as cluster, _producer(cluster) as producer:
        sending = asyncio.ensure_future(producer.send("t", b"waits"))
        await cluster.until(lambda: cluster.recorder.count(ApiKey.METADATA) >= 3)
        cluster.create_topic("t")
        await ends(sending, "the send")
        check_delivered(cluster, "t", {0: [b"waits"]})


async def test_a_topic_that_is_created_again_is_written_by_its_new_id():
    async with FakeCluster(1, topics={"t": 1}) as cluster, _producer(cluster) as producer:
        await _send_each(producer, [b"old"])
        cluster.delete_topic("t")
        cluster.create_topic("t")
        await _send_each(producer, [b"new"])
        check_delivered(cluster, "t", {0: [b"new"]})


@pytest.mark.parametrize("hears_of", ["the new topic", "the end of the former one"])
async def test_nothing_overtakes_a_batch_that_waits_for_the_answer_of_a_former_topic(hears_of: str):
    """The new topic's log does not know the producer: it accepts any number as the first."""
    async with (
        FakeCluster(2, topics={"t": 2}) as cluster,
        _producer(cluster, request_timeout_ms=20_000, delivery_timeout_ms=60_000) as producer,
    ):
        await _send_each(producer, [b"old"], partition=1)
        stalled = cluster.fault(ApiKey.PRODUCE, Stall(), times=1)
        first = asyncio.ensure_future(producer.send("t", b"first", partition=1))
        await ends(stalled.fired(), "the request that the leader does not answer")
        cluster.delete_topic("t")
        if hears_of == "the new topic":
            cluster.create_topic("t", 2)
        await producer._client.refresh_metadata(["t"])
        if hears_of != "the new topic":
            cluster.create_topic("t", 2)
        second = asyncio.ensure_future(producer.send("t", b"second", partition=1))
        await pass_time(1_000)
        assert not first.done()
        assert cluster.recorder.count(ApiKey.PRODUCE) == 2
        stalled.release()
        await ends(asyncio.gather(first, second), "both sends")
        check_delivered(cluster, "t", {1: [b"first", b"second"]})


async def test_a_batch_that_is_too_large_is_split():
    settings = Settings(max_message_bytes=400)
    async with FakeCluster(1, topics={"t": 1}, settings=settings) as cluster:
        async with _producer(cluster, batch_size=10_000, linger_ms=20) as producer:
            values = [bytes([65 + number]) * 50 for number in range(20)]
            await _send_each(producer, values)
            with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
                await ends(producer.send("t", b"x" * 500), "too large")
            await _send_each(producer, [b"after"])
        check_delivered(cluster, "t", {0: [*values, b"after"]})


async def test_the_producers_memory_at_the_broker_may_be_lost():
    """KIP-360: UNKNOWN_PRODUCER_ID and a gap that is none lead to a new epoch, not to an error."""
    async with FakeCluster(1, topics={"t": 1}) as cluster, _producer(cluster) as producer:
        sent = []
        for code in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            before = _numbered(f"before {code.name}", 3)
            await _send_each(producer, before)
            header = read_batch_header(cluster.log("t").batches[-1].data)
            cluster.log("t").forget_producer(header.producer_id)
            cluster.fault(ApiKey.PRODUCE, AnswerError(code))
            after = _numbered(f"after {code.name}", 3)
            await _send_each(producer, after)
            sent += before + after
        check_delivered(cluster, "t", {0: sent})


async def test_epochs_that_are_used_up_lead_to_a_new_producer_id():
    settings = Settings(first_producer_epoch=2**15 - 2)
    async with FakeCluster(1, topics={"t": 1}, settings=settings) as cluster:
        async with _producer(cluster) as producer:
            for number in range(4):
                await _send_each(producer, [b"%d" % number])
                cluster.settings.first_producer_epoch = 0
                if number:
                    continue
                for _ in range(2):
                    cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.UNKNOWN_PRODUCER_ID))
        check_delivered(cluster, "t", {0: [b"%d" % number for number in range(4)]})


async def test_a_delivery_that_takes_too_long_is_one_error_and_later_ones_go_on():
    settings = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 600}
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with _producer(cluster, **settings) as producer:
            await _send_each(producer, [b"before"])
            stalled = cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
            with pytest.raises(DeliveryTimeout, match=r"delivery\.timeout\.ms"):
                await ends(producer.send("t", b"late"), "the timeout")
            cluster.faults.remove(stalled)
            await _send_each(producer, _numbered("after", 5))
        values = delivered(cluster, "t")
        assert [value for value in values if value != b"late"] == [
            b"before", *_numbered("after", 5)]  # fmt: skip
        assert values.count(b"late") <= 1


async def test_acks_0_and_1():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        for acks in (0, 1):
            settings = {"acks": acks, "enable_idempotence": False}
            async with _producer(cluster, **settings) as producer:
                metadata = await ends(producer.send("t", b"acks %d" % acks), f"acks={acks}")
                assert (metadata.offset >= 0) == (acks == 1)
        check_delivered(cluster, "t", {0: [b"acks 0", b"acks 1"]})
        assert {request.acks for request in cluster.recorder.of(ProduceRequest)} == {0, 1}


async def test_a_cancelled_send_is_sent_once_or_not_at_all():
    async with FakeCluster(1, topics={"t": 1}) as cluster, _producer(cluster) as producer:
        await _send_each(producer, [b"before"])
        stalled: Fault = cluster.fault(ApiKey.PRODUCE, Stall())
        sending = asyncio.ensure_future(producer.send("t", b"cancelled"))
        await stalled.fired()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        stalled.release()
        await _send_each(producer, _numbered("after", 5))
        check_delivered(cluster, "t", {0: [b"before", b"cancelled", *_numbered("after", 5)]})


async def test_close_waits_for_what_is_on_its_way():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        producer = _producer(cluster, linger_ms=60_000, delivery_timeout_ms=120_000)
        async with producer:
            deliveries = [producer.send_nowait("t", value) for value in _numbered("v", 10)]
            cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS))
            await ends(producer.close(), "close")
            assert all(delivery.done() for delivery in deliveries)
        check_delivered(cluster, "t", {0: _numbered("v", 10)})


async def test_a_close_without_brokers_ends():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        producer = _producer(cluster)
        async with producer:
            await _send_each(producer, [b"before"])
            await cluster.stop_node(0)
            delivery = producer.send_nowait("t", b"lost")
            await ends(producer.close(timeout_ms=100), "close")
            assert delivery.done()
            assert isinstance(delivery.exception(), KafkaError)
