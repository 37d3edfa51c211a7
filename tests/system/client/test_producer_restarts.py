"""The producer on a real node that is killed while records come: each once, in order."""

from __future__ import annotations

import asyncio

from moldau.client import BufferFull, Delivery, Producer
from moldau.testing import Cluster
from tests.client.reading import read_topic

RECORDS = 6_000


async def test_a_node_that_is_killed_and_comes_back_loses_and_doubles_nothing() -> None:
    with Cluster() as cluster:
        deliveries: list[Delivery] = []
        async with Producer(
            cluster.bootstrap_server, compression_type="lz4", linger_ms=1, batch_size=2_000
        ) as producer:
            await producer.send("t", b"first")
            assert await producer.partitions_for("t") == [0]
            restarted: asyncio.Task[None] | None = None
            for number in range(RECORDS):
                if number in (RECORDS // 3, 2 * RECORDS // 3):
                    if restarted is not None:
                        await restarted
                    cluster.kill()
                    restarted = asyncio.create_task(asyncio.to_thread(cluster.restart))
                while True:
                    try:
                        deliveries.append(producer.send_nowait("t", b"%d" % number))
                        break
                    except BufferFull:
                        await producer.wait_for_room()
                if number % 20 == 0:
                    await asyncio.sleep(0)
            assert restarted is not None
            await restarted
            await producer.flush(timeout_ms=60_000)
            offsets = [delivery.result().offset for delivery in deliveries]
        found = await read_topic(cluster.bootstrap_server, "t")
        assert [record.value for record in found] == [
            b"first",
            *(b"%d" % number for number in range(RECORDS)),
        ]
        # An offset is -1 only for a batch whose first acknowledgement was lost.
        assert all(offset in (-1, number + 1) for number, offset in enumerate(offsets))
