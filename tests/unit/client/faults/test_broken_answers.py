"""Answers that are none: wrong correlation ids, garbage, half frames, silence, other protocols."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from moldau.client import Admin, KafkaError, NoBrokerAvailable, Producer, RequestTimeout
from moldau.protocol import ApiKey
from moldau.protocol.messages.p00_produce import ProduceRequest
from tests.fake_broker import FakeCluster, Garbage, Replace, Stall, Throttle, WrongCorrelation
from tests.unit.client.faults.harness import PRODUCER, check_delivered, ends, port_saying

BROKEN = [
    WrongCorrelation(1),
    WrongCorrelation(-1),
    WrongCorrelation(2**30),
    Garbage(b""),
    Garbage(b"\x00\x00\x00\x00"),
    Garbage(b"\xff\xff\xff\xff"),
    Garbage(b"\x7f\xff\xff\xff and much less"),
    Garbage(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    Garbage(b"", framed=True),
    Garbage(b"\x00", framed=True),
    Garbage(b"\xff" * 100, framed=True),
    Garbage(bytes(100), framed=True),
    Replace(lambda _: None),
]


def _named(action: Any) -> str:
    """The same in every process: functions without their addresses, long bytes cut."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(action))[:60]


@pytest.mark.parametrize("action", BROKEN, ids=_named)
async def test_a_producer_goes_on_over_a_new_connection(action: Any):
    """Request by request, several in flight: what was applied is not applied again."""
    values = [b"%d" % number for number in range(30)]
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        # A wrong answer ends the connection; no answer at all ends with the request's time.
        settings = {**PRODUCER, "batch_size": 50, "request_timeout_ms": 300}
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            faults = [cluster.fault(ApiKey.PRODUCE, action, nth=nth) for nth in (1, 4)]
            sends = [producer.send("t", value) for value in values]
            await ends(asyncio.gather(*sends), repr(action))
        assert [fault.fired_count for fault in faults] == [1, 1]
        check_delivered(cluster, "t", {0: values})
        if not isinstance(action, Replace):
            # It was applied, and the client did not believe the answer.
            assert cluster.log("t").duplicate_count >= 2


@pytest.mark.parametrize("action", [*BROKEN[:3], *BROKEN[4:]], ids=_named)
async def test_a_bad_first_answer_is_no_end(action: Any):
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        fault = cluster.fault(ApiKey.API_VERSIONS, action)
        async with Admin(cluster.bootstrap_servers) as admin:
            assert await ends(admin.list_topics(), repr(action)) == ["t"]
        assert fault.fired_count == 1


@pytest.mark.parametrize(
    "answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\x00" * 64]
)
async def test_a_server_that_is_no_broker_is_one_error_within_the_time(answer: bytes | None):
    async with port_saying(answer) as address:
        settings = {"default_api_timeout_ms": 300, "request_timeout_ms": 100}
        async with Admin(address, **settings) as admin:
            with pytest.raises((RequestTimeout, NoBrokerAvailable), match=r"127\.0\.0\.1"):
                await ends(admin.list_topics(), "the admin call")
        settings = {**PRODUCER, "max_block_ms": 300, "request_timeout_ms": 100}
        producer = Producer(address, **{**settings, "delivery_timeout_ms": 300})
        with pytest.raises(KafkaError, match=r"127\.0\.0\.1"):
            await ends(_use(producer), "the producer")


async def _use(producer: Producer) -> None:
    async with producer:
        await producer.send("t", b"value")


async def test_one_good_bootstrap_server_among_bad_ones_is_enough():
    async with FakeCluster(1, topics={"t": 1}) as cluster, port_saying(b"\x00" * 64) as address:
        servers = f"127.0.0.1:1,{address},{cluster.bootstrap_servers}"
        async with Admin(servers) as admin:
            assert await ends(admin.list_topics(), "the call") == ["t"]


async def test_throttled_clients_wait_and_lose_nothing():
    """KIP-219: after the answer nothing is sent to that broker until the time is over."""
    throttle_ms = 120
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers, **PRODUCER) as producer:
            await ends(producer.send("t", b"before"), "before")
            fault = cluster.fault(ApiKey.PRODUCE, Throttle(throttle_ms))
            await ends(producer.send("t", b"throttled"), "the throttled one")
            throttled_at = cluster.recorder.requests[-1].at_ms
            await ends(producer.send("t", b"after"), "after")
            produced = [
                each.at_ms
                for each in cluster.recorder.requests
                if isinstance(each.message, ProduceRequest)
            ]
            assert fault.fired_count == 1
            assert produced[-1] - throttled_at >= throttle_ms * 0.9
        check_delivered(cluster, "t", {0: [b"before", b"throttled", b"after"]})


async def test_throttling_by_any_api_is_no_error():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        for api_key in (
            ApiKey.METADATA,
            ApiKey.PRODUCE,
            ApiKey.INIT_PRODUCER_ID,
            ApiKey.FIND_COORDINATOR,
            ApiKey.END_TXN,
        ):
            cluster.fault(api_key, Throttle(20), times=None)
        settings = {**PRODUCER, "transactional_id": "x"}
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            for number in range(3):
                async with producer.transaction():
                    await ends(producer.send("t", b"%d" % number), "throttled")
        check_delivered(cluster, "t", {0: [b"0", b"1", b"2"]})


async def test_a_stalled_broker_does_not_hold_up_the_others():
    async with FakeCluster(2, topics={"t": 2}) as cluster:
        async with Producer(cluster.bootstrap_servers, **PRODUCER) as producer:
            await ends(producer.send("t", b"a", partition=0), "a")
            stalled = cluster.fault(ApiKey.PRODUCE, Stall(), node_id=0, times=None)
            waiting = producer.send_nowait("t", b"b", partition=0)
            for number in range(5):
                await ends(producer.send("t", b"%d" % number, partition=1), "the other broker")
            assert not waiting.done()
            stalled.release()
            await ends(waiting, "the stalled one")
        check_delivered(cluster, "t", {0: [b"a", b"b"], 1: [b"%d" % number for number in range(5)]})
