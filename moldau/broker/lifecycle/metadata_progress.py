"""How far a broker has applied the metadata that are committed.

Owns the question to the quorum's leader and the wait for an offset. Must not change anything.
"""

from __future__ import annotations

import asyncio
from typing import Final

from moldau.broker.lifecycle.controller_channel import (
    DEFAULT_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    ControllerChannel,
)
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.protocol.error_responses import error_codes
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from moldau.protocol.topic_names import METADATA_TOPIC_NAME

INTERNAL_PRINCIPAL: Final = "User:ANONYMOUS"


async def catch_up(channel: ControllerChannel, loader: MetadataLoader) -> None:
    """Return when the loader has everything that was committed when this was called.

    Raises:
        ControllerUnavailable: no active controller answered in time.
        TooManyWaiters: see MetadataLoader.
    """
    await wait_applied(loader, await high_watermark_of(channel, DEFAULT_TIMEOUT_MS))


async def wait_applied(loader: MetadataLoader, end_offset: int) -> None:
    """Return when the loader has everything below `end_offset`. Raises: TooManyWaiters."""
    await loader.wait_until(lambda image: image.provenance.last_contained_offset >= end_offset - 1)


async def high_watermark_of(channel: ControllerChannel, timeout_ms: int) -> int:
    """What is committed, as the quorum's leader knows it; asks until one does.

    Raises:
        ControllerUnavailable: an attempt was not answered in `timeout_ms`.
    """
    request = DescribeQuorumRequest(
        topics=[
            TopicData(topic_name=METADATA_TOPIC_NAME, partitions=[PartitionData(partition_index=0)])
        ]
    )
    while True:
        response = await channel.send(request, INTERNAL_PRINCIPAL, timeout_ms=timeout_ms)
        if not any(error_codes(response)):
            high_watermark: int = response.topics[0].partitions[0].high_watermark
            return high_watermark
        # It leads no more, or not yet for certain.
        await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
