"""What the fault tests share: settings, deadlines, and what "no loss, no duplicate" means.

Owns checks against the brokers' own logs. Must not look into the client. Invariant: every wait here
ends, with an error that says what was waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, cast

from moldau.client import TopicPartition
from moldau.protocol import ErrorCode
from moldau.runtime.ports import Ports
from tests.fake_broker import FakeCluster
from tests.fake_broker.node import HOST

_T = TypeVar("_T")

DEADLINE_S: Final = 120.0
"""The deadline in virtual time; longer than any limit that a client has."""

RETRIABLE: Final = tuple(code for code in ErrorCode if code.retriable)

PRODUCER: Final[Mapping[str, Any]] = {"linger_ms": 0}

CONSUMER: Final[Mapping[str, Any]] = {"auto_offset_reset": "earliest"}

MEMBER: Final[Mapping[str, Any]] = {**CONSUMER, "group_id": "g", "enable_auto_commit": False}


@asynccontextmanager
async def port_saying(answer: bytes | None) -> AsyncIterator[str]:
    """The address of a port that answers everything with the same bytes, or never."""
    transports: list[asyncio.BaseTransport] = []

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transports.append(transport)
            self.write = cast(asyncio.Transport, transport).write

        def data_received(self, data: bytes) -> None:
            if answer is not None:
                self.write(answer)

    listener = await Ports.of_machine().network.listen(Server, HOST, 0)
    try:
        yield f"{HOST}:{listener.port}"
    finally:
        listener.close()
        for transport in transports:
            transport.close()


async def ends(awaitable: Awaitable[_T], what: str, timeout_s: float = DEADLINE_S) -> _T:
    """What it returns or raises, as long as it does either."""
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await awaitable
    except TimeoutError:
        if deadline.expired():
            raise AssertionError(f"{what} hangs") from None
        raise


def delivered(cluster: FakeCluster, topic: str, *, committed_only: bool = False) -> list[bytes]:
    """The values in a topic, partition by partition."""
    return [value or b"" for value in cluster.values(topic, committed_only=committed_only)]


def check_delivered(cluster: FakeCluster, topic: str, sent: Mapping[int, list[bytes]]) -> None:
    """Every partition has exactly what was sent to it, in that order."""
    stored = {
        partition: [record.value for record in cluster.records(topic, partition)]
        for partition in range(len(cluster.topics[topic].partitions))
    }
    expected = {partition: sent.get(partition, []) for partition in stored}
    assert stored == expected, differences(stored, expected)


def differences(stored: Mapping[int, list[Any]], expected: Mapping[int, list[bytes]]) -> str:
    """What is missing, doubled or out of order, in a few words."""
    lines = []
    for partition, values in expected.items():
        have = stored[partition]
        missing = [value for value in values if value not in have]
        doubled = sorted({value for value in have if have.count(value) > 1})
        strange = [value for value in have if value not in values]
        if missing or doubled or strange or have != values:
            lines.append(
                f"partition {partition}: missing {missing}, twice {doubled}, strange {strange}"
                + ("" if missing or doubled or strange else ", out of order")
            )
    return "; ".join(lines)


async def take(consumer: Any, count: int, what: str = "the consumer") -> list[Any]:
    """The next `count` records."""
    records: list[Any] = []

    async def collect() -> None:
        while len(records) < count:
            batches = await consumer.getmany(timeout_ms=1000)
            records.extend(record for batch in batches.values() for record in batch)

    try:
        await ends(collect(), what)
    except AssertionError:
        have = [record.value for record in records]
        raise AssertionError(f"{what} hangs with {len(have)} of {count}: {have}") from None
    return records


async def poll_until(consumers: Iterable[Any], condition: Any, what: str) -> list[Any]:
    """Poll all of them until a condition holds; the records that came until then."""
    records: list[Any] = []

    async def poll() -> None:
        while not condition():
            for batches in await asyncio.gather(
                *(each.getmany(timeout_ms=20) for each in consumers)
            ):
                records.extend(record for batch in batches.values() for record in batch)

    await ends(poll(), what)
    return records


def values_of(records: Iterable[Any]) -> list[bytes]:
    """Their values."""
    return [record.value for record in records]


def partition(index: int, topic: str = "t") -> TopicPartition:
    """A partition's name."""
    return TopicPartition(topic, index)


def outcome_text(error: BaseException) -> str:
    """Type and text, for lists of what went wrong."""
    return f"{type(error).__name__}: {error}"
