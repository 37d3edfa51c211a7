"""A leader that stood still while another took its place does not mislead who asks it first."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterator

import pytest

from benchmarks.wire import FETCH_VERSION, FetchFrame
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import decode_response
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.replication.three_brokers import QUICK, Trio

pytestmark = pytest.mark.timeout(300)

ANSWER_S = 30
WRITTEN = 3
FIRST_LEADER_EPOCH = 0


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    with Cluster(brokers=3, controllers=3, config=QUICK) as cluster:
        yield Trio(cluster)


def fetch_error(connection: socket.socket) -> ErrorCode:
    """What the answer to the fetch that was sent says of its only partition."""
    (size_bytes,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    answer = connection.recv(size_bytes, socket.MSG_WAITALL)
    _, response = decode_response(ApiKey.FETCH, FETCH_VERSION, answer)
    return ErrorCode.of(response.responses[0].partitions[0].error_code)


def write(trio: Trio, topic: str, leader: int) -> None:
    """Through a leader, which may apply its election a moment after another broker shows it."""

    def is_written() -> bool:
        error = trio.put(topic, acks=-1, broker_id=leader).error_code
        assert error in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return bool(error == ErrorCode.NONE)

    until(is_written, what=f"broker {leader} leads {topic}")
    for _ in range(WRITTEN - 1):
        assert trio.put(topic, acks=-1, broker_id=leader).error_code == ErrorCode.NONE


@pytest.mark.parametrize("is_controller_silent", [False, True], ids=["", "and the controller too"])
def test_what_it_has_not_got_is_not_out_of_range(trio: Trio, is_controller_silent: bool) -> None:
    """It may hear first that it follows, and a follower, as in Apache Kafka, believes itself: then
    the leader epoch that clients send says so.
    """
    topic = trio.create(f"t-{uuid.uuid4().hex}")
    stopped = trio.leader(topic)
    write(trio, topic, stopped)
    host, _, port = trio.addresses[stopped].rpartition(":")
    silent = None
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as connection:
        trio.cluster.pause(stopped)
        try:
            write(trio, topic, trio.wait_leader(topic, other_than=stopped))
            if is_controller_silent:
                silent = trio.cluster.active_controller_id()
                trio.cluster.pause(silent)
            epoch = -1 if is_controller_silent else FIRST_LEADER_EPOCH
            fetch = FetchFrame(topic, max_bytes=1024, current_leader_epoch=epoch)
            # Where a group's committed offset is by now.
            fetch.ask_for(2 * WRITTEN, 0)
            connection.sendall(fetch.frame)
        finally:
            trio.cluster.resume(stopped)
        try:
            error = fetch_error(connection)
            if is_controller_silent or error != ErrorCode.FENCED_LEADER_EPOCH:
                assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        finally:
            if silent is not None:
                trio.cluster.resume(silent)
    trio.wait_isr(topic, {1, 2, 3})
    trio.wait_equal(topic)
