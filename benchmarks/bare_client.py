"""What the clients' bytes cost alone: ready batches over one blocking socket, nothing made or read.

Owns two loads beside those of `client_load`: one sends a ready batch again and again, the other
fetches and looks only at where the next batch begins. Must not: check, copy or decode what is
inside. They are for comparison and no lower bound: another size of requests may cost less.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from benchmarks.reader import Reader, ReadOrder
from benchmarks.sender import Sender, SendOrder
from moldau.protocol.records import BATCH_HEADER_SIZE, read_batch_header

IN_FLIGHT: Final = 5
FETCH_BYTES: Final = 1024 * 1024
"""Kafka's default of `max.partition.fetch.bytes`."""

_PREFIX_BYTES: Final = 4
_LONGEST_HEAD_BYTES: Final = 512
_BATCH: Final = struct.Struct(">qi4xb")  # base offset, length, magic
_MAGIC: Final = 2

Timed = Callable[[], AbstractContextManager[None]]


def send_bytes(
    bootstrap: str,
    topic: str,
    value_bytes: int,
    batch_bytes: int,
    counts: tuple[int, int],
    timed: Timed,
) -> None:
    """So many records, warm-up and timed, in ready batches; until the last is acknowledged."""
    host, port = bootstrap.rsplit(":", 1)
    order = SendOrder(
        *(host, int(port), os.getpid(), topic, value_bytes, batch_bytes),
        warm_up_count=0,
        request_count=0,
        in_flight_count=IN_FLIGHT,
    )
    sender = Sender(order)
    warm_up, timed_count = (-(-count // sender.record_count) for count in counts)
    sender.send(warm_up)
    with timed():
        sender.send(timed_count)
    sender.close()


def receive_bytes(bootstrap: str, topic: str, counts: tuple[int, int], timed: Timed) -> None:
    """So many records, warm-up and timed, of the first partition from its start."""
    host, port = bootstrap.rsplit(":", 1)
    order = ReadOrder(
        *(host, int(port), os.getpid(), topic, FETCH_BYTES),
        batch_bytes=0,
        batch_records=0,
        batch_count=0,
    )
    reader = Reader(order)
    warm_up, timed_count = counts
    _read_to(reader, warm_up)
    with timed():
        _read_to(reader, timed_count)
    reader.close()


def _read_to(reader: Reader, end_offset: int) -> None:
    """From the partition's start until that offset has been passed."""
    next_offset = request_count = 0
    while next_offset < end_offset:
        request_count += 1
        end = _PREFIX_BYTES + reader.fetch(next_offset, request_count)
        next_offset = _behind(reader.view, end, next_offset)


def _behind(view: memoryview, end: int, offset: int) -> int:
    """The offset behind the whole batches of a response that begins at `offset`."""
    at = _first_batch(view, end, offset)
    while at + BATCH_HEADER_SIZE <= end:
        header = read_batch_header(view, at)
        at += header.size_bytes
        if at > end:
            break
        offset = header.next_offset
    return offset


def _first_batch(view: memoryview, end: int, offset: int) -> int:
    """Behind the response's own fields: a batch that begins where was asked to."""
    for at in range(_PREFIX_BYTES, min(_LONGEST_HEAD_BYTES, end - _BATCH.size)):
        base_offset, length, magic = _BATCH.unpack_from(view, at)
        if base_offset == offset and magic == _MAGIC and 0 < length < end:
            return at
    return end
