"""Logs: the format of lines, levels that change at run time, and a brake for repetitive lines.

Owns: the handler on the "moldau" logger. Every module logs through
`logging.getLogger("moldau.<area>")`. Must not touch the root logger. Invariants: one event is one
line, whatever the message contains; all lines of a process have one format.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Final, Literal, TextIO

if TYPE_CHECKING:
    from moldau.runtime.clock import Clock

ROOT: Final = "moldau"

LogFormat = Literal["console", "json"]

_PLAIN: Final = re.compile(r"[\w.:*/@%+-]+", re.ASCII)


class Event:
    """What is logged as one text for people, and as its parts for machines.

    Attributes:
        name: what has happened, the same words each time.
        text: in which every part that a peer has chosen is `quoted`.
    """

    __slots__ = ("fields", "name", "text")

    def __init__(self, name: str, text: str, fields: dict[str, object]) -> None:
        self.name = name
        self.text = text
        self.fields = fields

    def __str__(self) -> str:
        return self.text


_STANDARD: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys()) | {
    "message",
    "asctime",
    "taskName",
}


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


#: What a level that asks for attention begins with on a terminal.
_COLORS: Final = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}


class ConsoleFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 WARNING server: text key=value`, in local time."""

    def __init__(self, *, colored: bool = False) -> None:
        super().__init__()
        self._colors = _COLORS if colored else {}

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        area = record.name.removeprefix(ROOT + ".")
        text = one_line(record.getMessage())
        level = f"{record.levelname:<7}"
        if color := self._colors.get(record.levelname):
            level = f"{color}{level}\x1b[0m"
        line = f"{when}.{int(record.msecs):03d} {level} {area}: {text}"
        for key, value in extra_fields(record).items():
            line += f" {key}={one_line(str(value))}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: timestamp (ISO 8601, UTC), level, logger, event, extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "timestamp": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if isinstance(record.msg, Event):
            entry["event"] = record.msg.name
            entry.update(record.msg.fields)
        for key, value in extra_fields(record).items():
            entry.setdefault(key, value)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return _printable_json(entry)


def configure_logging(
    log_format: LogFormat = "console",
    level: str | int = "INFO",
    *,
    stream: TextIO | None = None,
) -> None:
    """Send our logs to `stream` (standard error unless told), replacing an earlier configuration.

    Raises ValueError for an unknown level.
    """
    logger = logging.getLogger(ROOT)
    logger.setLevel(_parse_level(level))
    handler = logging.StreamHandler(stream or sys.stderr)
    colored = handler.stream.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else ConsoleFormatter(colored=colored)
    )
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.propagate = False


def set_level(level: str | int) -> None:
    """Change the level of all our loggers. Raises ValueError for a level that does not exist."""
    logging.getLogger(ROOT).setLevel(_parse_level(level))


class RateLimitedLog:
    """A logger for lines that peers can provoke: a few per interval, then a count of the rest."""

    __slots__ = ("_allowed", "_clock", "_interval_ms", "_left", "_logger", "_suppressed", "_until")

    def __init__(
        self,
        logger: logging.Logger,
        clock: Clock,
        *,
        allowed_count: int = 10,
        interval_ms: float = 10_000.0,
    ) -> None:
        """At most `allowed_count` lines every `interval_ms`."""
        self._logger = logger
        self._clock = clock
        self._allowed = allowed_count
        self._interval_ms = interval_ms
        self._left = allowed_count
        self._until = clock.monotonic_ms() + interval_ms
        self._suppressed = 0

    def warning(self, message: str, *args: object) -> None:
        """Log, unless the interval's share is used up."""
        now = self._clock.monotonic_ms()
        if now >= self._until:
            if self._suppressed:
                self._logger.warning("%d similar lines were left out", self._suppressed)
            self._suppressed = 0
            self._left = self._allowed
            self._until = now + self._interval_ms
        if self._left <= 0:
            self._suppressed += 1
            return
        self._left -= 1
        self._logger.warning(message, *args)


def one_line(text: str) -> str:
    """Text with its control characters escaped: they would let a peer forge lines, or colours."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def quoted(text: str) -> str:
    """Text that cannot be taken for what stands around it: as it is when it is of letters, digits
    and a few other characters, else as a JSON string, everything that does not print escaped.
    """
    return text if _PLAIN.fullmatch(text) else _printable_json(text)


def _printable_json(value: object) -> str:
    """One line of JSON without characters that a terminal or an editor would act on."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )


def _parse_level(level: str | int) -> int:
    if isinstance(level, int):
        return level
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"{level!r} is no log level (DEBUG, INFO, WARNING, ERROR, CRITICAL)")
    return number
