"""A Produce request's parts are counted as they come out when it is decoded."""

from __future__ import annotations

import random

import pytest

from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.produce_parts import has_more_parts
from tests.kit.dice import drawn_seed


def _request(source: random.Random) -> tuple[ProduceRequest, int]:
    """A request, and its topics and partitions."""
    topics = []
    count = 0
    for number in range(source.randrange(4)):
        partitions = [
            PartitionProduceData(
                index=index, records=source.choice((None, source.randbytes(source.randrange(60))))
            )
            for index in range(source.choice((0, 1, 4, 125, 126, 127, 128, 300)))
        ]
        name = f"t-{number}" + "x" * source.choice((0, 122, 123, 124, 200))
        topics.append(TopicProduceData(name=name, partition_data=partitions))
        count += 1 + len(partitions)
    transactional_id = source.choice((None, "", "an id", "x" * 126, "x" * 127, "x" * 200))
    return ProduceRequest(transactional_id=transactional_id, topic_data=topics), count


@pytest.mark.parametrize(
    "api_version", range(ProduceRequest.MIN_VERSION, ProduceRequest.MAX_VERSION + 1)
)
def test_parts_are_counted(api_version: int) -> None:
    seed = drawn_seed()
    source = random.Random(seed)
    for _ in range(50):
        request, count = _request(source)
        body = memoryview(request.to_bytes(api_version))
        assert not has_more_parts(body, api_version, count)
        if count:
            assert has_more_parts(body, api_version, count - 1)


@pytest.mark.parametrize("api_version", [3, 9, 13])
def test_what_cannot_be_read_has_no_more_parts(api_version: int) -> None:
    request, _ = _request(random.Random(5))
    body = request.to_bytes(api_version)
    for end in range(20):
        assert not has_more_parts(body[:end], api_version, 100)
    assert not has_more_parts(b"\xff" * 200, api_version, 100_000_000_000)
