"""A transaction that hangs: a partition has it open, and no coordinator knows of it.

Owns nothing. A broker takes such a record only while it does not verify transactions.
"""

from __future__ import annotations

import time
from typing import Final

from moldau.client import ClientConfig
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.records import Record, encode_batch

VERIFICATION: Final = "transaction.partition.verification.enable"
PRODUCER_ID: Final = 4_000_000
EXPLICIT_ADD: Final = (3, 11)
"""Versions of Produce whose clients add partitions by its own request."""


async def begin_behind_the_coordinator(bootstrap: str, topic: str) -> None:
    """Append a transactional record of a producer that no coordinator knows."""
    batch = encode_batch(
        [Record(0, time.time_ns() // 1_000_000, None, b"lost")],
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    request = ProduceRequest(
        transactional_id="lost",
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=1, records=memoryview(batch))],
            )
        ],
    )
    client = ClusterClient(ClientConfig(bootstrap))
    try:
        leader_id = await client.leader_of(topic, 1)
        response = await client.ask_node(leader_id, request, versions=EXPLICIT_ADD)
    finally:
        await client.close()
    assert response.responses[0].partition_responses[0].error_code == 0
