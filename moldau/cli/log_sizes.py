"""How many bytes partitions take on disk, as the brokers' log directories report it.

Invariant: a broker that does not answer is an error beside the others' answers, never of the call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from moldau import client
from moldau.client.admin.cluster import ClusterCalls

ANSWER_TIMEOUT_MS: Final = 5_000
"""For each broker: figures are worth having while one of them does not answer."""

Directories = Mapping[int, list[client.LogDirectory] | client.KafkaError]
"""By broker, what lies in its log directories, or why that is not known."""


async def log_directories(
    admin: ClusterCalls, broker_ids: Iterable[int], timeout_ms: float = ANSWER_TIMEOUT_MS
) -> dict[int, list[client.LogDirectory] | client.KafkaError]:
    """One request for each broker, all at the same time."""

    async def ask(broker_id: int) -> list[client.LogDirectory] | client.KafkaError:
        try:
            answer = await admin.describe_log_directories([broker_id], timeout_ms=timeout_ms)
        except client.KafkaError as error:
            return error
        return answer[broker_id]

    asked = sorted(broker_ids)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))


def topic_bytes(directories: Directories) -> dict[str, int]:
    """The bytes of each topic that a broker reported, all replicas together."""
    totals: defaultdict[str, int] = defaultdict(int)
    for found in directories.values():
        if isinstance(found, client.KafkaError):
            continue
        for directory in found:
            for partition, size_bytes in directory.partition_bytes.items():
                totals[partition.topic] += size_bytes
    return totals


def missing_text(directories: Directories, absent: Iterable[int] = ()) -> str | None:
    """Which brokers' sizes are missing, and why; None when all are known.

    Args:
        absent: brokers that have replicas and could not be asked.
    """
    errors = {
        broker_id: found
        for broker_id, found in directories.items()
        if isinstance(found, client.KafkaError)
    }
    silent = sorted({*absent, *errors})
    if not silent:
        return None
    denied = next(
        (each for each in errors.values() if isinstance(each, client.AuthorizationFailed)), None
    )
    if denied is not None and len(errors) == len(directories):
        return f"sizes are not known: {denied}"
    ids = ", ".join(map(str, silent))
    are = f"broker {ids}, which does" if len(silent) == 1 else f"brokers {ids}, which do"
    return f"sizes are without {are} not answer"
