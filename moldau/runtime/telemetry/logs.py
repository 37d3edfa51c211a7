"""Logs: form (`moldau.log.format`), levels that change at run time, the limit on repetitive lines.

Owns: the handler on the "moldau" logger. Every module logs through `logging.getLogger(__name__)`,
as often as it has something to say; only the loggers of `AUDIT` have names of their own. Must not
touch the root logger. Invariants: one event is one line, whatever the message contains; all lines
of a process have one format; above DEBUG no message is written more than ten times within a minute.
What is said of two partitions is two messages.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TextIO

from moldau.runtime.telemetry.brake import Brake, LeftOut, Names
from moldau.text import one_line, printable_json

if TYPE_CHECKING:
    from moldau.runtime.clock import Clock

ROOT: Final = "moldau"

AUDIT: Final = ("moldau.audit", "moldau.authentication", "moldau.authorizer")
"""Who changed what, who was not let in, who was refused."""

LogFormat = Literal["console", "json"]

BRAKE_INTERVAL_MS: Final = 60_000.0
MAX_LINES: Final = 10
"""The limit for one message within any interval."""
MAX_MESSAGES: Final = 5_000
SUBJECTS_SHARE: Final = 0.01
"""The share of messages: with one format about so many partitions, each with `MAX_LINES`."""
SUBJECT: Final = re.compile(r"[\w.-]+-\d+", re.ASCII)
"""What a message with the format `%s…` is about, as its first argument: a partition, a fetcher."""
SAMPLE_LENGTH: Final = 300
"""Characters that a count shows of the message."""

_DIGITS: Final = re.compile(r"\d+")
_DIRECTIVE: Final = re.compile(r"%[-+ #0-9.]*[a-zA-Z]")
_LETTER: Final = re.compile(r"[a-zA-Z]")


@dataclass(slots=True, eq=False, repr=False)
class Event:
    """What is logged as one text for people, and as its parts for machines.

    Attributes:
        name: what has happened, the same words each time.
        text: in which every part that a peer has chosen is `quoted`.
        is_counted: a `Brake` of the area has let it through; the handler writes every one.
    """

    name: str
    text: str
    fields: dict[str, object]
    _: KW_ONLY
    is_counted: bool = False

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
            trace = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n{one_line(each)}" for each in trace)
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
        return printable_json(json.dumps(entry, default=str, ensure_ascii=False))


class _Sample(NamedTuple):
    """What a count shows of the message that it counts."""

    logger_name: str
    level: int
    text: str


class BrakedHandler(logging.StreamHandler[TextIO]):
    """Writes a message `MAX_LINES` times within any `BRAKE_INTERVAL_MS`, and how often it would
    have been written; all lines of a logger at DEBUG.

    A count follows within two intervals if a loop runs where lines are left out, else before the
    next line that is written, and at the latest when the handler is closed.
    """

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        super().__init__(stream)
        self._clock = clock
        self._brake: Brake[_Sample] = Brake(
            clock,
            max_lines=MAX_LINES,
            interval_ms=BRAKE_INTERVAL_MS,
            max_messages=MAX_MESSAGES,
            senders_share=SUBJECTS_SHARE,
        )
        self._timer_due_ms = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock."""
        is_counted = isinstance(record.msg, Event) and record.msg.is_counted
        if is_counted or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            super().emit(record)
            return
        try:
            self._write_counts()
            kind, subject = _message_of(record)
            sample = self._brake.take((kind, subject), lambda: _sample(record), kind)
        except (TypeError, ValueError):  # arguments that do not fit: as logging treats them
            self.handleError(record)
            return
        if sample is not None:
            super().emit(record)
        else:
            self._arm()

    def close(self) -> None:
        """Write the counts that are due."""
        self._run_locked(with_early=True)
        super().close()

    def _run_locked(self, *, with_early: bool = False) -> None:
        self.acquire()
        try:
            self._write_counts(with_early=with_early)
            if not with_early and self._brake.due_ms() is not None:
                self._arm()
        finally:
            self.release()

    def _write_counts(self, *, with_early: bool = False) -> None:
        for left_out in self._brake.take_counts(with_early=with_early):
            super().emit(_count_record(left_out))

    def _arm(self) -> None:
        """See to it that counts are written though no line follows. A timer whose loop has ended
        is lost: it counts as due no longer than its own time.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._timer_due_ms:
            with contextlib.suppress(RuntimeError):  # No loop runs in this thread.
                self._clock.call_later(BRAKE_INTERVAL_MS, self._run_locked)
                self._timer_due_ms = now_ms + BRAKE_INTERVAL_MS


def _message_of(record: logging.LogRecord) -> tuple[Names, str]:
    """What a record says, and of which subject. The first is of one logger, level and format, or
    name of an event; where a format has no words of its own, the text without its numbers.
    """
    subject, error = "", record.exc_info[0] if record.exc_info else None
    if isinstance(record.msg, Event):
        words = record.msg.name
    else:
        words = str(record.msg)
        if not record.args or not _LETTER.search(_DIRECTIVE.sub("", words)):
            words = _DIGITS.sub("#", record.getMessage()[:SAMPLE_LENGTH])
        elif words.startswith("%s") and isinstance(record.args, tuple):
            name = str(record.args[0])
            subject = name if SUBJECT.fullmatch(name) else ""
    return (record.name, record.levelname, words, error.__name__ if error else ""), subject


def _sample(record: logging.LogRecord) -> _Sample:
    text = record.getMessage()
    if len(text) > SAMPLE_LENGTH:
        text = f"{text[:SAMPLE_LENGTH]}…"
    return _Sample(record.name, record.levelno, text)


def _count_record(left_out: LeftOut[_Sample]) -> logging.LogRecord:
    seconds = BRAKE_INTERVAL_MS / 1000
    fields: dict[str, object] = {"left_out": left_out.line_count, "within_s": seconds}
    sample, among = left_out.sample, ""
    if sample is None:  # of subjects beyond the share, or of messages beyond all of them
        name, level, words, _ = left_out.sender or (f"{ROOT}.logs", "WARNING", "other messages", "")
        sample = _Sample(name, logging.getLevelNamesMapping()[level], words)
        among = ", of others" if left_out.sender else ""
    fields["message"] = sample.text
    text = f"{left_out.line_count} more like this within {seconds:.0f} s{among}: {sample.text}"
    event = Event("lines left out", text, fields)
    return logging.LogRecord(sample.logger_name, sample.level, "", 0, event, (), None)


def configure_logging(
    log_format: LogFormat = "console",
    level: str | int = "INFO",
    *,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> None:
    """Send our logs to `stream` (standard error without one), replacing an earlier configuration.

    `clock` is what the limit on repetitive lines goes by; the system's without one. Raises
    ValueError for an unknown level.
    """
    from moldau.runtime.clock import SystemClock  # With asyncio: not for a command's help.

    logger = logging.getLogger(ROOT)
    logger.setLevel(_parse_level(level))
    handler = BrakedHandler(stream or sys.stderr, clock or SystemClock())
    colored = handler.stream.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else ConsoleFormatter(colored=colored)
    )
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        if isinstance(old, BrakedHandler):
            old.close()
    logger.addHandler(handler)
    logger.propagate = False


def set_level(level: str | int) -> None:
    """Change the level of all our loggers, but see `audit_kept`. Raises ValueError for a level that
    does not exist.
    """
    with audit_kept():
        logging.getLogger(ROOT).setLevel(_parse_level(level))


@contextlib.contextmanager
def audit_kept() -> Iterator[None]:
    """Change levels at a client's wish inside: a logger of `AUDIT` that wrote lines at INFO goes on
    with it, whatever becomes of the loggers that it inherits from.
    """
    before = {name: logging.getLogger(name).getEffectiveLevel() for name in AUDIT}
    yield
    for name, level in before.items():
        least = max(level, logging.INFO)
        if logging.getLogger(name).getEffectiveLevel() > least:
            logging.getLogger(name).setLevel(least)


def _parse_level(level: str | int) -> int:
    if isinstance(level, int):
        return level
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"{level!r} is no log level (DEBUG, INFO, WARNING, ERROR, CRITICAL)")
    return number
