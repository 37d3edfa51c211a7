"""How often a broker looks at a batch on its way from the request into the log: its header is read
once and handed on as a value, and one CRC pass checks it. A second pass computes the CRC of bytes
that the broker changed itself.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import pytest

from moldau.broker.api import p00_produce
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import BATCH_HEADER_SIZE, Codec
from moldau.protocol.records import header as header_module
from tests.unit.broker.coordinator.transaction.scripted_coordinator import script
from tests.unit.broker.harness import DataPath
from tests.unit.broker.messages import batch, only, produce


class Passes(NamedTuple):
    """`looks` are reads of single header fields from the bytes."""

    parses: int
    crcs: int
    looks: int = 0


class Counts:
    """What the product does with the batches of the requests that come after `watch`."""

    def __init__(self) -> None:
        self.parses = self.crcs = self.looks = 0

    def take(self) -> Passes:
        passes = Passes(self.parses, self.crcs, self.looks)
        self.parses = self.crcs = self.looks = 0
        return passes


class CountingStruct:
    """The header's layout, which counts what is read with it."""

    size = BATCH_HEADER_SIZE

    def __init__(self, counts: Counts, layout: Struct) -> None:
        self.counts = counts
        self.layout = layout
        self.pack_into = layout.pack_into

    def unpack_from(self, buffer: Any, position: int = 0) -> tuple[Any, ...]:
        self.counts.parses += 1
        return self.layout.unpack_from(buffer, position)


class WatchedRecords(bytearray):
    """The bytes of a batch, which count the reads of single header fields."""

    counts: Counts

    def __getitem__(self, where: Any) -> Any:
        last = where if isinstance(where, int) else where.stop
        if last is not None and last <= BATCH_HEADER_SIZE:
            self.counts.looks += 1
        return super().__getitem__(where)


def watch(patch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()
    patch.setattr(
        header_module, "HEADER_STRUCT", CountingStruct(counts, header_module.HEADER_STRUCT)
    )
    crc32c: Callable[[Any], int] = header_module.crc32c

    def counting_crc(covered: Any) -> int:
        counts.crcs += 1
        return crc32c(covered)

    patch.setattr(header_module, "crc32c", counting_crc)
    handle = p00_produce.handle

    def watching_handle(services: Any, context: Any, request: Any) -> Any:
        counts.take()  # What the test did to make its request.
        for topic in request.topic_data:
            for data in topic.partition_data:
                data.records = WatchedRecords(data.records)
                data.records.counts = counts
        return handle(services, context, request)

    patch.setattr(p00_produce, "handle", watching_handle)
    return counts


@pytest.mark.parametrize("acks", [-1, 1, 0])
@pytest.mark.parametrize("producer_id", [-1, 7])
async def test_a_plain_batch_is_parsed_once_and_its_crc_is_verified_once(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch, acks: int, producer_id: int
) -> None:
    broker.create_topic("t")
    counts = watch(monkeypatch)
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if producer_id > 0 else {}
    broker.send(produce({("t", 0): batch(3, **options)}, acks=acks), 12)
    assert counts.take() == Passes(parses=1, crcs=1)
    assert broker.log("t").log_end_offset == 3


@pytest.mark.parametrize("api_version", [11, 12])
async def test_a_transactional_batch_is_parsed_once_while_its_transaction_is_verified(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch, api_version: int
) -> None:
    broker.create_topic("t", 2)
    coordinator = script(broker)
    coordinator.reply = None
    counts = watch(monkeypatch)
    for sequence in range(2):
        records = batch(
            producer_id=71, producer_epoch=4, base_sequence=sequence, is_transactional=True
        )
        partitions = {("t", index): records for index in range(2)}
        request = broker.send(
            produce(partitions, transactional_id="mine", api_version=api_version), api_version
        )
        if not sequence:
            assert not request.is_answered, "its coordinator is asked"
            coordinator.open.pop().answer()
        assert request.is_answered
        assert [each.error_code for each in request.response.responses[0].partition_responses] == [
            ErrorCode.NONE
        ] * 2
        assert counts.take() == Passes(parses=2, crcs=2), "two batches"


@pytest.mark.parametrize(
    ("config", "codec", "passes"),
    [
        ({"compression_type": "gzip"}, Codec.NONE, Passes(parses=1, crcs=2)),
        ({"compression_type": "gzip"}, Codec.LZ4, Passes(parses=1, crcs=2)),
        ({"compression_type": "gzip"}, Codec.GZIP, Passes(parses=1, crcs=1)),
        ({"cleanup_policy": "compact"}, Codec.NONE, Passes(parses=1, crcs=1)),
        ({"cleanup_policy": "compact"}, Codec.GZIP, Passes(parses=1, crcs=1)),
        ({"message_timestamp_type": "LogAppendTime"}, Codec.NONE, Passes(parses=1, crcs=2)),
    ],
)
async def test_a_second_crc_pass_is_only_that_of_bytes_which_the_broker_changed(
    broker: DataPath,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, str],
    codec: Codec,
    passes: Passes,
) -> None:
    broker.create_topic("t", **config)
    counts = watch(monkeypatch)
    response = await broker.ask(produce({("t", 0): batch(3, codec=codec)}), 12)
    assert only(response).error_code == ErrorCode.NONE
    assert counts.take() == passes


async def test_a_damaged_batch_that_needs_another_codec_is_refused_by_its_crc(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log trusts what preparation has checked, so preparation must check."""
    broker.create_topic("t", compression_type="gzip")
    counts = watch(monkeypatch)
    damaged = batch(3)
    damaged[-1] ^= 1
    response = await broker.ask(produce({("t", 0): damaged}), 12)
    assert only(response).error_code == ErrorCode.CORRUPT_MESSAGE
    assert counts.take() == Passes(parses=1, crcs=1)
    assert broker.log("t").log_end_offset == 0
