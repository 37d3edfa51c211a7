"""Frames that are no requests: the peer loses its connection, and no other client notices
anything.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from tests.interop.raw.wire import bare_socket, frame, is_closed, read_response
from tests.interop.topics import TopicMaker

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
SIZE = struct.Struct(">i")


class Bystander(threading.Thread):
    """A well-behaved producer that must not notice what others do."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name="bystander")
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "error_cb": self._failed,
            }
        )
        self._topic = topic
        self._ending = threading.Event()
        self.acknowledged_offsets: list[int] = []
        self.failures: list[Any] = []

    def _failed(self, error: Any) -> None:
        self.failures.append(error)

    def _report(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged_offsets.append(message.offset())
        else:
            self.failures.append(error)

    def run(self) -> None:
        while not self._ending.is_set():
            self._producer.produce(self._topic, b"v", partition=0, on_delivery=self._report)
            self._producer.poll(0.005)
        self._producer.flush(20)

    def finish(self) -> None:
        """Stop, and assert that nothing happened to it."""
        self._ending.set()
        self.join()
        assert self.failures == []
        assert self.acknowledged_offsets == list(range(len(self.acknowledged_offsets)))


@pytest.fixture(scope="module", autouse=True)
def bystander(bootstrap: str, topics: TopicMaker) -> Iterator[Bystander]:
    """Produces during all tests of this module."""
    thread = Bystander(bootstrap, topics.create())
    thread.start()
    yield thread
    thread.finish()


@pytest.fixture(autouse=True)
def progress(bystander: Bystander) -> Iterator[None]:
    """After every test the bystander still gets acknowledgements."""
    from tests.kit.waiting import until

    yield
    before = len(bystander.acknowledged_offsets)
    until(lambda: len(bystander.acknowledged_offsets) > before, what="the bystander goes on")
    assert bystander.failures == []


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(SIZE.pack(104_857_601) + b"x" * 100, id="over-the-limit"),
        pytest.param(SIZE.pack(2**31 - 1), id="largest"),
        pytest.param(SIZE.pack(-1), id="minus-one"),
        pytest.param(SIZE.pack(-(2**31)), id="most-negative"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
        pytest.param(bytes.fromhex("160301020001"), id="tls"),
    ],
)
def test_impossible_sizes_close_the_connection(bootstrap: str, start: bytes) -> None:
    with bare_socket(bootstrap) as peer:
        peer.sendall(start)
        assert is_closed(peer)


@pytest.mark.parametrize(
    "request_frame",
    [
        pytest.param(frame(9999, 0), id="unknown-api"),
        pytest.param(frame(-1, 0), id="negative-api"),
        pytest.param(frame(int(ApiKey.CONTROLLED_SHUTDOWN), 0), id="removed-api"),
        pytest.param(frame(METADATA, 99), id="unknown-version"),
        pytest.param(frame(PRODUCE, 0), id="removed-version"),
        pytest.param(frame(FETCH, -1), id="negative-version"),
        pytest.param(frame(METADATA, 4, b"\x7f\xff\xff\xff"), id="huge-array"),
        pytest.param(frame(METADATA, 4, b"\x00\x00\x00\x02\x00\x09abc"), id="cut-string"),
        pytest.param(frame(METADATA, 4), id="no-body"),
        pytest.param(SIZE.pack(3) + b"\x00\x03\x00", id="no-header"),
        pytest.param(SIZE.pack(0), id="empty"),
    ],
)
def test_what_is_no_request_closes_the_connection(bootstrap: str, request_frame: bytes) -> None:
    with bare_socket(bootstrap) as peer:
        peer.sendall(request_frame)
        assert is_closed(peer)


def test_a_frame_that_never_ends_is_no_ones_problem(bootstrap: str) -> None:
    with bare_socket(bootstrap) as half, bare_socket(bootstrap) as whole:
        half.sendall(frame(METADATA, 4, b"\x00\x00\x00\x00\x00")[:-3])
        whole.sendall(frame(METADATA, 4, b"\x00\x00\x00\x00\x00"))
        assert read_response(whole)[0] == 7


def test_an_unknown_version_of_the_first_question_is_answered(bootstrap: str) -> None:
    with bare_socket(bootstrap) as peer:
        peer.sendall(frame(API_VERSIONS, 99, b"\x00", correlation_id=41))
        correlation_id, body = read_response(peer)
        assert correlation_id == 41
        error_code, count = struct.unpack_from(">hi", body)
        assert error_code == ErrorCode.UNSUPPORTED_VERSION
        served = dict(
            struct.unpack_from(">hh", body, 6 + 6 * number)[:2] for number in range(count)
        )
        assert API_VERSIONS in served
        # The same connection may ask again, in a version that both know.
        peer.sendall(frame(API_VERSIONS, 0, correlation_id=42))
        correlation_id, body = read_response(peer)
        assert correlation_id == 42
        assert struct.unpack_from(">h", body)[0] == ErrorCode.NONE


def test_requests_in_a_row_are_answered_in_order(bootstrap: str) -> None:
    with bare_socket(bootstrap) as peer:
        body = b"\x00\x00\x00\x00\x00"
        peer.sendall(b"".join(frame(METADATA, 4, body, correlation_id=n) for n in range(50)))
        assert [read_response(peer)[0] for _ in range(50)] == list(range(50))


def test_a_request_in_single_bytes(bootstrap: str) -> None:
    with bare_socket(bootstrap) as peer:
        for byte in frame(METADATA, 4, b"\x00\x00\x00\x00\x00"):
            peer.sendall(bytes([byte]))
        assert read_response(peer)[0] == 7


def test_a_good_request_before_garbage_is_answered(bootstrap: str) -> None:
    with bare_socket(bootstrap) as peer:
        peer.sendall(frame(METADATA, 4, b"\x00\x00\x00\x00\x00") + SIZE.pack(-5))
        assert read_response(peer)[0] == 7
        assert is_closed(peer)


def test_random_bodies_do_no_harm(bootstrap: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(60):
        with bare_socket(bootstrap) as peer:
            api_key = dice.choice([0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 37, 44, 60, 75])
            body = dice.randbytes(dice.randrange(200))
            peer.sendall(frame(api_key, dice.randrange(12), body))
            peer.shutdown(1)
            while peer.recv(65_536):
                pass
    with bare_socket(bootstrap) as peer:
        peer.sendall(frame(METADATA, 4, b"\x00\x00\x00\x00\x00"))
        assert read_response(peer)[0] == 7
