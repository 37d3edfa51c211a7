"""What the golden scripts of the coordinators are made of: commands by name, messages and records
in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from moldau.protocol.coordinator_records import CoordinatorLog
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import decode_records, iter_batches
from moldau.protocol.schema import Struct
from moldau.protocol.types import TopicPartition
from tests.unit.broker.coordinator.harness import Caller, MemoryPartition

_LEFT_OUT = (
    *("client_host", "client_id", "error_message", "interval", "leader_epoch", "metadata_hash"),
    *("protocol_type", "timeout", "timestamp"),
)
"""Parts of the names of fields that no script is about."""


def partitions_of(words: list[str]) -> list[TopicPartition]:
    """From `outputs-0`."""
    found = []
    for word in words:
        topic, _, index = word.rpartition("-")
        found.append(TopicPartition(topic, int(index)))
    return found


def offset_of(partition: Any) -> str:
    """What OffsetFetch says of a partition; OffsetCommit says only that there is no error."""
    return str(getattr(partition, "committed_offset", "NONE"))


def shown(value: Any) -> str:
    """A field's value, as short as it can be read."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("ascii", "backslashreplace").replace("\0", "") or "nothing"
    if isinstance(value, Struct):
        return f"({fields(value)})"
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(shown, value))}]"
    return str(value)


def fields(message: Struct) -> str:
    """The fields of a message that differ from their defaults."""
    usual = type(message)()
    parts = []
    for name in (each.name for each in message.spec().fields):
        value = getattr(message, name)
        if value in (None, getattr(usual, name, None)) or any(each in name for each in _LEFT_OUT):
            continue
        if name == "error_code":
            parts.append(ErrorCode.of(value).name)
        else:
            short = name.removeprefix("transaction_").removesuffix("_id")
            parts.append(f"{short}={shown(value)}")
    return " ".join(parts) or "NONE"


class Script:
    """Executes commands: each is a method, its words are the arguments, `name=value` are options.

    Its lines come in this order: what was appended to the log, what was answered (in the order in
    which it was asked for), and what `_changes` adds.
    """

    def __init__(self, log: CoordinatorLog) -> None:
        self._log = log
        self._waiting: list[tuple[str, Caller]] = []
        self._known_batches: list[bytearray] = []
        self.names: dict[str, str] = {}
        """What random ids are called in the script."""

    def execute(self, words: list[str]) -> list[str]:
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        plain = [word for word in words[1:] if "=" not in word]
        command: Callable[..., Any] = getattr(self, words[0].replace("-", "_"))
        lines = [*(command(*plain, **options) or ())]
        lines += [*self._appended(), *self._answered(), *self._changes()]
        return [self._named(line) for line in lines]

    def ask(self, name: str, caller: Caller) -> None:
        """Show the answer when it comes."""
        self._waiting.append((name, caller))

    @property
    def partition(self) -> MemoryPartition:
        raise NotImplementedError

    def answer_line(self, answer: Any) -> str:
        lines = [
            f"{topic.name}-{each.partition_index} "
            + (ErrorCode.of(each.error_code).name if each.error_code else offset_of(each))
            for topic in getattr(answer, "topics", ())
            for each in topic.partitions
        ]
        if lines:
            return " ".join(lines)
        return fields(answer) if isinstance(answer, Struct) else shown(answer)

    def record_line(self, key: Struct, value: Struct | None) -> str:
        """`value` is None in a record that deletes the one before it."""
        name = type(key).__name__.removesuffix("Key")
        return f"{name} {fields(key)} -> {'deleted' if value is None else fields(value)}"

    def _changes(self) -> Iterator[str]:
        yield from ()

    def _answered(self) -> Iterator[str]:
        waiting, self._waiting = self._waiting, []
        for name, caller in waiting:
            if caller.is_answered:
                yield f"{name}: {self.answer_line(caller.answer)}"
            else:
                self._waiting.append((name, caller))

    def _appended(self) -> Iterator[str]:
        before, now = self._known_batches, list(self.partition.batches)
        self._known_batches = now
        for batch in now:
            if not any(batch is each for each in before):
                yield from self._batch_lines(batch)

    def _batch_lines(self, batch: bytearray) -> Iterator[str]:
        for position, header in iter_batches(batch):
            if header.is_control:
                yield f"log {header.base_offset}: a marker"
                continue
            for record in decode_records(batch, position):
                key = self._log.decode_key(record.key)
                if key == self._log.unused_key:
                    yield f"log {record.offset}: proof of leadership"
                    continue
                value = None
                if record.value is not None:
                    value, _ = self._log.decode_value(key, record.value)
                yield f"log {record.offset}: {self.record_line(key, value)}"

    def _named(self, line: str) -> str:
        for random_id, name in self.names.items():
            line = line.replace(random_id, name)
        return line
