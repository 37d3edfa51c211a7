"""Frames that the loads send, and the bare loops they are compared with."""

from __future__ import annotations

import json
import socket
import struct
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.bare import BareOrder
from benchmarks.nodes import HOST, bare_loop
from benchmarks.produce_load import bare_order
from benchmarks.reader import Reader, ReadOrder
from benchmarks.sender import Sender, SendOrder
from benchmarks.wire import (
    CLIENT_ID,
    FETCH_VERSION,
    PRODUCE_VERSION,
    FetchFrame,
    ProduceAnswers,
    ProduceFrame,
)
from moldau.protocol.headers import decode_request_header
from moldau.protocol.messages.p00_produce import ProduceRequest
from moldau.protocol.messages.p01_fetch import FetchRequest
from moldau.protocol.records import read_batch_header, validate_records, verify_crc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")


@pytest.mark.parametrize("batch_bytes", [1, 16 * 1024, 262_144, 1_000_000])
def test_a_patched_produce_frame_is_a_valid_request(batch_bytes: int):
    frame = ProduceFrame(
        "t", record_bytes=1024, batch_bytes=batch_bytes, producer_id=7, producer_epoch=3
    )
    for number in range(3):
        frame.advance(number)
        body = memoryview(bytes(frame.frame))[4:]
        header, at = decode_request_header(body)
        assert (header.correlation_id, header.client_id) == (number, CLIENT_ID)
        request, end = ProduceRequest.decode(body[at:], PRODUCE_VERSION)
        assert at + end == len(body)
        records = request.topic_data[0].partition_data[0].records
        assert records is not None
        assert batch_bytes <= len(records) == frame.batch_bytes
        assert frame.batch_bytes < batch_bytes + 1200 + 4 * frame.record_count
        batch = read_batch_header(records)
        assert verify_crc(records, 0, batch)
        validate_records(records, 0, batch)
        assert batch.base_sequence == number * frame.record_count == number * batch.record_count


def test_a_patched_fetch_frame_asks_for_the_offset():
    frame = FetchFrame("t", max_bytes=1000)
    frame.ask_for(123_456, 9)
    body = memoryview(bytes(frame.frame))[4:]
    header, at = decode_request_header(body)
    request, _ = FetchRequest.decode(body[at:], FETCH_VERSION)
    assert header.correlation_id == 9
    assert request.topics[0].partitions[0].fetch_offset == 123_456


def _answer(frame: ProduceFrame, error: int, base_offset: int) -> bytes:
    body = bytes(frame.error_at - 4) + struct.pack(">hq", error, base_offset) + bytes(20)
    return len(body).to_bytes(4, "big") + body


def test_answers_are_taken_however_they_are_cut():
    frame = ProduceFrame("t", record_bytes=10, batch_bytes=1)
    data = b"".join(_answer(frame, 0, offset) for offset in (5, 6, 2**40))
    for first in range(1, len(data)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            answers = ProduceAnswers(ours, frame)
            theirs.sendall(data[:first])
            found = answers.take()
            theirs.sendall(data[first:])
            assert found + answers.take() == [5, 6, 2**40]


def test_an_answer_with_an_error_and_the_end_of_a_connection_are_refused():
    frame = ProduceFrame("t", record_bytes=10, batch_bytes=1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answers = ProduceAnswers(ours, frame)
        theirs.sendall(_answer(frame, 6, -1))
        with pytest.raises(AssertionError, match="error 6"):
            answers.take()
        theirs.close()
        with pytest.raises(ConnectionError):
            answers.take()


@pytest.mark.real
def test_the_receiving_loop_writes_exactly_what_was_sent(tmp_path: Path):
    order = SendOrder(
        host=HOST,
        port=0,
        server_pid=0,
        topic="t",
        record_bytes=100,
        batch_bytes=5_000,
        warm_up_count=3,
        request_count=40,
        in_flight_count=5,
        checks_offsets=False,
    )
    sizes = bare_order(tmp_path / "bare", order)
    with bare_loop("receive", sizes) as loop:
        sending = SendOrder(**{**asdict(order), "port": loop.ports[0], "server_pid": loop.pid})
        outcome = Sender(sending).run()
    assert outcome.request_count == 40
    assert outcome.megabytes_per_second > 0
    frame = ProduceFrame("t", record_bytes=100, batch_bytes=5_000)
    assert (tmp_path / "bare").stat().st_size == 43 * sizes.frame_bytes
    assert outcome.batch_bytes == frame.batch_bytes


@pytest.mark.real
def test_the_reader_takes_whole_batches_in_order_from_the_sendfile_loop(tmp_path: Path):
    frame = ProduceFrame("t", record_bytes=100, batch_bytes=3_000)
    at = len(frame.frame) - frame.batch_bytes
    at = next(i for i in range(at + 1) if _is_batch(frame, i))
    batch = bytearray(frame.frame[at : at + frame.batch_bytes])
    with (tmp_path / "log").open("wb") as log:
        for number in range(25):
            batch[:8] = (number * frame.record_count).to_bytes(8, "big")
            log.write(batch)
    sizes = BareOrder(
        path=str(tmp_path / "log"),
        request_bytes=len(FetchFrame("t", max_bytes=10_000).frame),
        head_bytes=80,
        batch_bytes=frame.batch_bytes,
        fetch_bytes=10_000,
    )
    with bare_loop("sendfile", sizes) as loop:
        order = ReadOrder(
            host=HOST,
            port=loop.ports[0],
            server_pid=loop.pid,
            topic="t",
            fetch_bytes=10_000,
            batch_bytes=frame.batch_bytes,
            batch_records=frame.record_count,
            batch_count=25,
        )
        outcome = Reader(order).run()
    assert outcome.data_bytes == 25 * frame.batch_bytes
    assert outcome.request_count == 9
    assert json.dumps(asdict(outcome))


def _is_batch(frame: ProduceFrame, position: int) -> bool:
    data = frame.frame[position : position + frame.batch_bytes]
    length = int.from_bytes(data[8:12], "big")
    return length == frame.batch_bytes - 12 and data[16] == 2
