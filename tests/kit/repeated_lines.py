"""What a node logged again and again: no message more than ten times within a minute.

Owns: which lines say the same, and how many of them are too many. Must not: know what wrote them.
A soak reads its nodes' logs with it when the run is over. Lines that a node's own limit kept back
count, too: what is repeated without a pause is a fault, written or not.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from moldau.runtime.telemetry.logs import SUBJECT

MAX_LINES: Final = 10
WITHIN: Final = timedelta(minutes=1)
#: Lines of one message that were left out within a minute, by level: a retry that pauses for a
#: second is well below, one that pauses for a tenth, or not at all, above. At INFO there is a line
#: for each partition whenever a broker comes and goes.
MAX_LEFT_OUT: Final = {"INFO": 600, "WARNING": 120, "ERROR": 120, "CRITICAL": 0}
#: The audit log promises to name each client and each resource: two of them are two messages.
AUDIT: Final = ("authentication", "authorizer")
#: Is written into a node's log before the node starts.
START: Final = "--- the node starts ---"

_LINE: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\w+) +(.*)")
_SERVES: Final = re.compile(r"node\.foreground: node serves ")
_LEFT_OUT: Final = re.compile(r"[\w.]+: (\d+) more like this within \d+ s(?:, of others)?: ")
#: A UUID as Kafka writes it has 22 characters, and is no word.
_IDS: Final = re.compile(r"(?<![\w-])(?=[\w-]*[\dA-Z])[\w-]{22}(?![\w-])")
_NUMBERS: Final = re.compile(r"0x[0-9a-f]+|\d+")
_LISTS: Final = re.compile(r"#(?:[,.:] ?#)+")


def masked(text: str) -> str:
    """The text without what differs from line to line: numbers, addresses, ids, durations. Of the
    name of a partition with which it begins the number stays: it says which one is meant. Lines of
    the audit log stay as they are.
    """
    area, _, said = text.partition(": ")
    if area in AUDIT:
        return text
    subject, _, rest = said.partition(" ")
    if SUBJECT.fullmatch(subject.removesuffix(":")):
        return f"{area}: {subject} {masked_words(rest)}"
    return masked_words(text)


def masked_words(text: str) -> str:
    """The text without numbers, addresses, ids and durations, wherever they are."""
    return _LISTS.sub("#", _NUMBERS.sub("#", _IDS.sub("ID", text)))


@dataclass(slots=True)
class _Message:
    """One message of one process."""

    first_line: str
    recent: deque[datetime] = field(default_factory=deque)
    most: int = 0

    def add(self, when: datetime) -> None:
        self.recent.append(when)
        while self.recent[0] <= when - WITHIN:
            self.recent.popleft()
        self.most = max(self.most, len(self.recent))


def repeated_lines(text: str, *, with_left_out: bool = True) -> list[str]:
    """What a node's log says too often, a line each with how often and the first of its lines.

    A message of a process that was started again is another message.

    Args:
        with_left_out: also what was kept back too often; not where clients provoke it on purpose.
    """
    found: list[str] = []
    messages: dict[str, _Message] = {}
    for line in text.splitlines():
        if line == START or _SERVES.search(line):
            found += _too_many(messages)
            messages.clear()
        parts = _LINE.fullmatch(line)
        if parts is None:
            continue  # of a traceback, or written by something else
        when, level, words = parts.groups()
        left_out = _LEFT_OUT.match(words)
        if with_left_out and left_out and int(left_out[1]) > MAX_LEFT_OUT.get(level, 0):
            found.append(f"kept back {left_out[1]} times within a minute: {line}")
        message = messages.setdefault(f"{level} {masked(words)}", _Message(line))
        message.add(datetime.fromisoformat(when))
    return [*found, *_too_many(messages)]


def _too_many(messages: Mapping[str, _Message]) -> Iterator[str]:
    for message in messages.values():
        if message.most > MAX_LINES:
            yield f"logged {message.most} times within a minute: {message.first_line}"


def repeated_in(logs: Mapping[int, Path]) -> list[str]:
    """The same of nodes' logs, by node id."""
    return [
        f"node {node_id}: {each}"
        for node_id, path in sorted(logs.items())
        for each in repeated_lines(path.read_text(errors="replace"))
    ]
