"""What a reader's process reports to the soak: a line of tab-separated fields per event.

Owns the lines, both ways. Must not judge. Invariant: lines of one process are in the order in which
it handed out and reported.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TextIO
from uuid import UUID

from moldau.protocol.types import uuid_from_base64, uuid_to_base64
from tests.system.topics.account import LossReport, Read

READ: Final = "R"
LOSS: Final = "L"
NOTE: Final = "N"
WRONG: Final = "E"
NOTHING: Final = "-"
READY: Final = "ready"
"""A note: from here on topics may be deleted."""

MEMBER: Final = "/"
"""What stands between a reader's name and that of its member."""

member_name: Final[ContextVar[str | None]] = ContextVar("member_name", default=None)
"""Whose client runs, in a process with several members of one reader."""

RECREATED: Final = re.compile(r"topic (\S+) was deleted and created again \(its id is (\S+) now\)")
"""The warning of the client."""


class Teller:
    """Writes a process's events to its standard output. Any thread may."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._is_ready = False

    def reads(self, name: str, reads: Iterable[Read]) -> None:
        """Records that were handed out."""
        lines = []
        for read in reads:
            topic_id = NOTHING if read.topic_id is None else uuid_to_base64(read.topic_id)
            fields = (READ, name, read.topic, read.partition, read.offset, topic_id, read.number)
            lines.append("\t".join(map(str, fields)) + "\n")
        self._write("".join(lines))

    def polled(self, name: str, reads: Iterable[Read]) -> None:
        """Records that a poll has handed out; after the first poll topics may be deleted."""
        self.reads(name, reads)
        if not self._is_ready:
            self._is_ready = True
            self.note(name, READY)

    def loss(self, name: str, report: LossReport) -> None:
        """A topic was created again."""
        topic_id = None if report.topic_id is None else uuid_to_base64(report.topic_id)
        fields = (report.topic, report.partition, report.offset, topic_id)
        shown = [NOTHING if field is None else str(field) for field in fields]
        self._write("\t".join((LOSS, name, *shown)) + "\n")

    def note(self, name: str, text: str) -> None:
        """Something that is counted."""
        self._write(f"{NOTE}\t{name}\t{' '.join(text.split())}\n")

    def wrong(self, name: str, text: str) -> None:
        """Something that must not be."""
        self._write(f"{WRONG}\t{name}\t{' '.join(text.split())}\n")

    def _write(self, text: str) -> None:
        with self._lock:
            self._out.write(text)
            self._out.flush()


class Warnings(logging.Handler):
    """The warnings of a client, as events of one reader."""

    def __init__(self, teller: Teller, name: str) -> None:
        super().__init__(logging.WARNING)
        self._teller = teller
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        """A warning."""
        text = record.getMessage()
        found = RECREATED.search(text)
        if found is not None:
            name = member_name.get() or self._name
            self._teller.loss(name, LossReport(found[1], topic_id=UUID(found[2])))
        elif record.name.startswith("moldau.spark_connector.results"):
            self._teller.wrong(self._name, text)
        else:
            self._teller.note(self._name, text)


class Tail:
    """The events that a process has written so far, each once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""

    def close(self) -> None:
        """The end."""
        self._file.close()

    def new(self) -> Iterator[list[str]]:
        """The fields of the lines that have come."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").split("\t")


def reader_of(fields: list[str]) -> str:
    """The reader of a line, without its member."""
    return fields[1].partition(MEMBER)[0]


def event_of(fields: list[str]) -> Read | LossReport:
    """The event of a line READ or LOSS."""
    kind, name, topic, *rest = fields
    member = name.partition(MEMBER)[2]
    values: list[Any] = [None if field == NOTHING else field for field in rest]
    if kind == READ:
        partition, offset, topic_id, number = values
        known_id = None if topic_id is None else uuid_from_base64(topic_id)
        return Read(topic, int(partition), int(offset), known_id, int(number), member)
    partition, offset, topic_id = values
    return LossReport(
        topic,
        None if partition is None else int(partition),
        None if offset is None else int(offset),
        None if topic_id is None else uuid_from_base64(topic_id),
        member,
    )
