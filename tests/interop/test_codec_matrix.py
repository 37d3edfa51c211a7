"""Every client's records in every codec, read back equal by every other client."""

from __future__ import annotations

import asyncio

import pytest

from moldau.protocol.records import Codec
from tests.interop.drivers import DRIVERS, Driver
from tests.interop.raw.probe import stored_headers
from tests.interop.samples import CODECS, sample_records
from tests.interop.topics import TopicMaker

READERS = DRIVERS


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", DRIVERS, ids=lambda driver: driver.name)
def test_what_one_client_writes_every_client_reads(
    bootstrap: str, topics: TopicMaker, writer: Driver, codec: str
) -> None:
    topic = topics.create()
    records = [rec for rec in sample_records() if writer.can_write(rec)]
    assert len(records) > 60
    writer.write(bootstrap, topic, records, codec=codec)
    headers = asyncio.run(stored_headers(bootstrap, topic))
    assert sum(header.record_count for header in headers) == len(records)
    stored = {header.codec for header in headers}
    assert Codec[codec.upper()] in stored
    # A client may send a batch plain when compression does not make it smaller.
    assert stored <= {Codec[codec.upper()], Codec.NONE}
    for reader in READERS:
        assert reader.read(bootstrap, topic, len(records)) == records, reader.name


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_a_topic_with_its_own_codec_recompresses(
    bootstrap: str, topics: TopicMaker, codec: str
) -> None:
    topic = topics.create(config={"compression.type": codec})
    records = sample_records()
    DRIVERS[0].write(bootstrap, topic, records, codec="none")
    headers = asyncio.run(stored_headers(bootstrap, topic))
    assert {header.codec for header in headers} == {Codec[codec.upper()]}
    assert sum(header.record_count for header in headers) == len(records)
    for reader in READERS:
        assert reader.read(bootstrap, topic, len(records)) == records, reader.name


def test_an_uncompressed_topic_unpacks_what_clients_compress(
    bootstrap: str, topics: TopicMaker
) -> None:
    topic = topics.create(config={"compression.type": "uncompressed"})
    records = sample_records()
    DRIVERS[0].write(bootstrap, topic, records, codec="zstd")
    headers = asyncio.run(stored_headers(bootstrap, topic))
    assert {header.codec for header in headers} == {Codec.NONE}
    assert DRIVERS[1].read(bootstrap, topic, len(records)) == records
