"""Reading a topic's partitions for people who look: where to begin, and how much at most.

Owns the places to begin (`from=…`), the budget of a reader and the report of what was read, and the
form of keys and values in JSON. Must not know HTTP. Invariant: what a reader takes is bounded by
its budget, and the report says what ended it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from moldau.client import Admin, ConsumerRecord, OffsetSpec, TimestampType, TopicPartition
from moldau.console.problems import Problem

FROM: Final = r"^(earliest|latest|offset:\d{1,19}|timestamp:\d{1,15}|last:\d{1,9})$"
_PARTITION: Final = re.compile(r"\d{1,9}")
MAX_OFFSET: Final = 2**63 - 1


@dataclass(slots=True)
class Budget:
    """How much one reader may take, and what it has.

    Attributes:
        records, size_bytes, seconds: at most; None for as much as comes.
    """

    records: int | None
    size_bytes: int | None
    seconds: float | None
    began_s: float
    read_records: int = 0
    read_bytes: int = 0
    stopped_by: str = "end"

    def take(self, record: ConsumerRecord[bytes, bytes]) -> None:
        """Count a record."""
        self.read_records += 1
        self.read_bytes += len(record.key or b"") + len(record.value or b"")

    def is_spent(self, now_s: float) -> bool:
        """Whether nothing more may be read; then `stopped_by` says why."""
        if self.records is not None and self.read_records >= self.records:
            self.stopped_by = "records"
        elif self.size_bytes is not None and self.read_bytes >= self.size_bytes:
            self.stopped_by = "bytes"
        elif self.seconds is not None and now_s - self.began_s >= self.seconds:
            self.stopped_by = "time"
        else:
            return False
        return True

    def left_records(self, most: int) -> int:
        """How many records to take next at most."""
        return most if self.records is None else min(most, self.records - self.read_records)

    def left_s(self, now_s: float, longest_s: float) -> float:
        """How long to wait for the next record at most."""
        if self.seconds is None:
            return longest_s
        return max(0.0, min(longest_s, self.began_s + self.seconds - now_s))

    def report(self, now_s: float, *, is_complete: bool) -> dict[str, Any]:
        """What was read so far."""
        return {
            "records": self.read_records,
            "bytes": self.read_bytes,
            "seconds": round(now_s - self.began_s, 3),
            "is_complete": is_complete,
            "stopped_by": self.stopped_by,
        }


async def partitions_of(
    admin: Admin, topic_name: str, wanted: Collection[str] | None
) -> list[TopicPartition]:
    """The partitions that a reader means, all without a choice. Raises: Problem, KafkaError."""
    described = (await admin.describe_topics([topic_name]))[topic_name]
    known = [each.partition for each in described.partitions]
    if not wanted:
        return [TopicPartition(topic_name, each) for each in known]
    chosen: list[int] = []
    for text in wanted:
        if _PARTITION.fullmatch(text) is None or int(text) not in known:
            raise Problem(422, f"the topic has no partition {text}; it has 0 to {max(known)}")
        chosen.append(int(text))
    return [TopicPartition(topic_name, each) for each in sorted(set(chosen))]


async def start_offsets(
    admin: Admin, partitions: Collection[TopicPartition], begin: str, *, read_committed: bool
) -> dict[TopicPartition, int]:
    """The offsets to read from, for `earliest`, `latest`, `offset:N`, `timestamp:MS` and `last:N`
    (of each partition); within what the log has.

    Raises:
        KafkaError
    """
    kind, _, text = begin.partition(":")
    starts = await _offsets(admin, partitions, OffsetSpec.EARLIEST, read_committed=read_committed)
    if kind == "earliest":
        return starts
    ends = await _offsets(admin, partitions, OffsetSpec.LATEST, read_committed=read_committed)
    if kind == "latest":
        return ends
    number = min(int(text), MAX_OFFSET)
    if kind == "timestamp":
        found = await _offsets(admin, partitions, number, read_committed=read_committed)
        return {each: at if at >= 0 else ends[each] for each, at in found.items()}
    wanted = {each: number if kind == "offset" else ends[each] - number for each in partitions}
    return {each: min(max(at, starts[each]), ends[each]) for each, at in wanted.items()}


async def _offsets(
    admin: Admin, partitions: Collection[TopicPartition], spec: int, *, read_committed: bool
) -> dict[TopicPartition, int]:
    found = await admin.list_offsets(dict.fromkeys(partitions, spec), read_committed=read_committed)
    return {partition: each.offset for partition, each in found.items()}


async def end_offsets(
    admin: Admin, partitions: Collection[TopicPartition], *, read_committed: bool
) -> dict[TopicPartition, int]:
    """Where the partitions end now: the high watermarks, or the last stable offsets."""
    return await _offsets(admin, partitions, OffsetSpec.LATEST, read_committed=read_committed)


def shown_bytes(data: bytes | None, limit_bytes: int) -> dict[str, Any] | None:
    """Bytes as JSON has them: as text where they are UTF-8, else in Base64; cut at a limit."""
    if data is None:
        return None
    cut = data[:limit_bytes]
    encoding = "utf-8"
    try:
        text = cut.decode()
    except UnicodeDecodeError as error:
        if len(cut) < len(data) and error.start >= len(cut) - 3:
            text = cut[: error.start].decode()  # the limit lies within a character
        else:
            encoding, text = "base64", base64.b64encode(cut).decode()
    return {
        "encoding": encoding,
        "text": text,
        "size_bytes": len(data),
        "is_truncated": len(cut) < len(data),
    }


def shown_record(record: ConsumerRecord[bytes, bytes], limit_bytes: int) -> dict[str, Any]:
    """A record as JSON has it, its key and value as they are."""
    is_create = record.timestamp_type is TimestampType.CREATE_TIME
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms if record.timestamp_ms >= 0 else None,
        "timestamp_type": "create" if is_create else "append",
        "key": shown_bytes(record.key, limit_bytes),
        "value": shown_bytes(record.value, limit_bytes),
        "headers": [
            {"name": name, "value": shown_bytes(value, limit_bytes)}
            for name, value in record.headers
        ],
        "key_size": None if record.key is None else len(record.key),
        "value_size": None if record.value is None else len(record.value),
        "leader_epoch": record.leader_epoch,
        "is_control": False,
    }


def event_id(positions: Mapping[TopicPartition, int]) -> str:
    """The positions behind a record, as the text from which reading goes on there."""
    parts = (f'"{each.topic}-{each.partition}":{at}' for each, at in positions.items())
    return "{" + ",".join(parts) + "}"


def server_event(name: str, data: bytes, positions: Mapping[TopicPartition, int]) -> bytes:
    """A server-sent event, with the positions behind it as its id."""
    return f"id: {event_id(positions)}\nevent: {name}\ndata: ".encode() + data + b"\n\n"


def resumed(text: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The positions of an event's id. Raises: Problem: it is none of this topic."""
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        given = None
    by_name = {f"{each.topic}-{each.partition}": each for each in partitions}
    found: dict[TopicPartition, int] = {}
    if isinstance(given, dict) and given.keys() <= by_name.keys():
        for name, at in given.items():
            if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at <= MAX_OFFSET:
                break
            found[by_name[name]] = at
        else:
            return found
    raise Problem(422, "Last-Event-ID is no position in these partitions")
