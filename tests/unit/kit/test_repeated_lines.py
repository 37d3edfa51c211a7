"""The check of nodes' logs finds what is repeated, and nothing else."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from moldau.node import foreground
from moldau.runtime.telemetry.logs import (
    BRAKE_INTERVAL_MS,
    MAX_LINES,
    BrakedHandler,
    ConsoleFormatter,
)
from tests.kit.manual_clock import ManualClock
from tests.kit.repeated_lines import MAX_LEFT_OUT, START, masked, repeated_in, repeated_lines

BEGIN_S = 1_790_000_000.0
FORMATTER = ConsoleFormatter()


def line(text: str, at_s: float, level: int = logging.WARNING, name: str = "moldau.raft") -> str:
    """As a node writes it, so many seconds after the begin."""
    record = logging.LogRecord(name, level, "", 0, text, (), None)
    record.created = BEGIN_S + at_s
    record.msecs = record.created % 1 * 1000
    return FORMATTER.format(record)


def test_eleven_lines_within_a_minute_are_found_with_their_number_and_the_first() -> None:
    lines = [line(f"fencing broker {number}", 5.9 * number) for number in range(11)]
    [found] = repeated_lines("\n".join([line("other", 0), *lines, line("other", 60)]))
    assert found == f"logged 11 times within a minute: {lines[0]}"


def test_ten_lines_in_each_minute_are_lawful() -> None:
    lines = [line(f"fencing broker {number}", 6.0 * number) for number in range(100)]
    assert repeated_lines("\n".join(lines)) == []


def test_other_levels_loggers_and_words_are_other_messages() -> None:
    lines = []
    for number in range(8):
        lines += [
            line("one", number),
            line("one", number, logging.ERROR),
            line("one", number, name="moldau.storage"),
            line("two", number),
        ]
    assert repeated_lines("\n".join(lines)) == []


def test_a_process_that_was_started_again_begins_again() -> None:
    def run(begin_s: float) -> list[str]:
        return [line("loading", begin_s + number) for number in range(8)]

    serves = line("node serves", 9, logging.INFO, foreground.logger.name)
    serves += " node_id=1 address=h:1"
    assert repeated_lines("\n".join([*run(0), *run(10)])) != []
    assert repeated_lines("\n".join([*run(0), START, *run(10)])) == []
    assert repeated_lines("\n".join([*run(0), serves, *run(10)])) == []


def test_tracebacks_and_foreign_lines_are_no_messages() -> None:
    lines = [line("odd", 0), *["  File x, line 3", "moldau: no"] * 20]
    assert repeated_lines("\n".join(lines)) == []


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (
            "raft: to 10.0.0.1:9093 (pid 7): after 12.5 ms",
            "raft: to 10.9.8.7:1 (pid 12): after 3 ms",
        ),
        ("ISR 1,2,3 at 0x7f2a", "ISR 1,2 at 0x11"),
        ("topic Zm9vYmFyYmF6cXV4MTIzNA is", "topic Abb-_FyYmF6cXV4MTIzNA0 is"),
    ],
)
def test_what_differs_from_line_to_line_is_masked(text: str, same: str) -> None:
    assert masked(text) == masked(same)


def test_what_is_said_of_two_partitions_is_two_messages() -> None:
    one, two = masked("storage: t-1: no room at 7"), masked("storage: t-2: no room at 9")
    assert (one, two) == ("storage: t-1: no room at #", "storage: t-2: no room at #")
    assert masked("storage: t-1 is offline: 3") == masked("storage: t-1 is offline: 4")


def test_the_audit_log_is_checked_for_equal_lines_only() -> None:
    lines = [
        line(f"failed authentication of u-{number}", number, name="moldau.authentication")
        for number in range(11)
    ]
    assert repeated_lines("\n".join(lines)) == []
    assert len(repeated_lines("\n".join(11 * lines[:1]))) == 1


def test_words_are_not_masked() -> None:
    text = "controlled-shutdown-of uncharacteristically-so a-broker"
    assert masked(text) == text


@pytest.mark.parametrize(
    ("level", "count", "is_found"),
    [
        (logging.WARNING, 2_745, True),
        (logging.WARNING, MAX_LEFT_OUT["WARNING"], False),
        (logging.INFO, MAX_LEFT_OUT["INFO"], False),
        (logging.INFO, MAX_LEFT_OUT["INFO"] + 1, True),
    ],
)
def test_what_a_node_keeps_back_counts(level: int, count: int, is_found: bool) -> None:
    """Through the product's own handler, whose words the check has to know."""
    clock, stream = ManualClock(), io.StringIO()
    handler = BrakedHandler(stream, clock)
    handler.setFormatter(FORMATTER)
    for _ in range(MAX_LINES + count):
        handler.handle(logging.LogRecord("moldau.raft", level, "", 0, "fencing", (), None))
    clock.advance(BRAKE_INTERVAL_MS)
    text = stream.getvalue()
    found = repeated_lines(text)
    assert [each.partition(":")[0] for each in found] == (
        [f"kept back {count} times within a minute"] if is_found else []
    )
    assert repeated_lines(text, with_left_out=False) == []


def test_logs_are_named_by_their_node(tmp_path: Path) -> None:
    quiet, loud = tmp_path / "quiet", tmp_path / "loud"
    quiet.write_text(line("once", 0))
    loud.write_bytes(b"\xff\n" + "\n".join([line("again", 0)] * 11).encode())
    [found] = repeated_in({1: quiet, 2: loud})
    assert found.startswith("node 2: logged 11 times within a minute: ")
