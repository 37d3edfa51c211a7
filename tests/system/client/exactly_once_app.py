"""`python -m tests.system.client.exactly_once_app BOOTSTRAP NAME`: one process of the soak.

Consumes the input, transforms each record, and commits what it made together with the group's
offsets, as the recipe in docs/client.md has it. Killed at any point, it goes on where its last
committed transaction ended. Ends with status 0 on SIGTERM, and with 1 when its producer is of no
use any more; its parent starts it again. Prints a line per committed transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from demo.enrichment import DEPARTURES, INPUT
from demo.transactions_app import GROUP
from moldau.client import Consumer, Producer
from moldau.client.config.keywords import ConsumerSettings
from moldau.client.errors import KafkaError, ProducerFenced, RequestTimeout, TransactionAbortable

POLL_MS = 500.0
TRANSACTION_TIMEOUT_MS = 30_000


def transformed(value: bytes) -> bytes:
    """What is made of an input record."""
    return b"made of " + value[::-1]


async def run(bootstrap: str, name: str, protocol: str, record_count: int) -> None:
    """Run until SIGTERM. Raises: KafkaError when the producer can do nothing any more."""
    settings: ConsumerSettings = {"group_protocol": "consumer"}
    if protocol == "classic":
        # Restarted under the same name it is the same member: no other member is disturbed.
        settings = {"group_instance_id": name, "session_timeout_ms": 10_000}
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, is_over.set)
    async with (
        Producer(
            bootstrap,
            transactional_id=f"{GROUP}-{name}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            compression_type="lz4",
        ) as producer,
        Consumer(
            bootstrap,
            group_id=GROUP,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **settings,
        ) as consumer,
    ):
        consumer.subscribe([INPUT])
        while not is_over.is_set():
            taken = await consumer.getmany(max_records=record_count, timeout_ms=POLL_MS)
            if not taken:
                continue
            try:
                async with producer.transaction():
                    count = 0
                    for records in taken.values():
                        for record in records:
                            await producer.wait_for_room()
                            producer.send_nowait(
                                DEPARTURES, transformed(record.value), key=record.key
                            )
                            count += 1
                    await producer.send_offsets(consumer)
            except ProducerFenced:
                raise
            except (TransactionAbortable, RequestTimeout) as error:
                print(f"aborted: {error}", file=sys.stderr, flush=True)
                await consumer.seek_to_committed()
            else:
                print(f"committed {count}", flush=True)


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Transforms records, exactly once.")
    parser.add_argument("bootstrap")
    parser.add_argument("name")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--records", type=int, default=1_000, help="per transaction, at most")
    options = parser.parse_args()
    try:
        asyncio.run(run(options.bootstrap, options.name, options.protocol, options.records))
    except KafkaError as error:
        print(f"exactly_once_app {options.name}: {error!r}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
