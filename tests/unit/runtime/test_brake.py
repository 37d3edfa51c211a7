"""What is logged again and again: a few lines, then a count."""

from __future__ import annotations

import io
import logging
import random
import threading
from collections import Counter, deque

import pytest

from moldau.runtime.clock import SystemClock
from moldau.runtime.telemetry.brake import MAX_SENDERS_COUNTED, OTHERS, Brake, LeftOut
from moldau.runtime.telemetry.logs import (
    BRAKE_INTERVAL_MS,
    MAX_LINES,
    MAX_MESSAGES,
    SUBJECTS_SHARE,
    BrakedHandler,
    Event,
    configure_logging,
)
from tests.kit.manual_clock import ManualClock
from tests.kit.server_harness import Written

logger = logging.getLogger("moldau.test")
BUSY = logging.getLogger("moldau.busy")


def test_a_message_is_a_few_lines_and_a_count(written: Written) -> None:
    for number in range(2_745):
        logger.warning("fencing broker %d, which fell silent", number)
    assert written.take() == [
        f"fencing broker {number}, which fell silent" for number in range(MAX_LINES)
    ]
    written.clock.advance(BRAKE_INTERVAL_MS)
    [entry] = written.take_entries()
    assert (entry["event"], entry["left_out"]) == ("lines left out", 2_745 - MAX_LINES)
    assert entry["message"] == f"fencing broker {MAX_LINES}, which fell silent"
    assert (entry["level"], entry["logger"]) == ("warning", "moldau.test")
    written.clock.advance(BRAKE_INTERVAL_MS)
    assert written.take() == [], "nothing more was left out"
    logger.warning("fencing broker %d, which fell silent", 7)
    assert written.take() == ["fencing broker 7, which fell silent"]


def test_the_count_reads_well_on_a_terminal(written: Written) -> None:
    stream = io.StringIO()
    configure_logging("console", "INFO", stream=stream, clock=written.clock)
    for _ in range(MAX_LINES + 3):
        logger.error("cannot read %s", "a\nb")
    written.clock.advance(BRAKE_INTERVAL_MS)
    *lines, count = stream.getvalue().splitlines()
    assert len(lines) == MAX_LINES
    assert count.endswith(r"ERROR   test: 3 more like this within 60 s: cannot read a\nb")


def test_no_message_is_written_more_than_ten_times_within_any_minute(
    written: Written, request: pytest.FixtureRequest
) -> None:
    """Against the definition: a window that slides, over random bursts and pauses."""
    seed = random.randrange(2**32)
    request.node.add_report_section("call", "seed", str(seed))
    dice = random.Random(seed)
    recent: dict[str, deque[float]] = {}
    logged: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for _ in range(3_000):
        written.clock.advance(dice.choice((0, 10, 700, 8_000, 61_000)))
        for _ in range(dice.randrange(20)):
            name = dice.choice(("a", "b"))
            logged[name] += 1
            logger.info(f"{name}: %d", dice.randrange(9))
        now_ms = written.clock.monotonic_ms()
        for entry in written.take_entries():
            event = str(entry["event"])
            name = str(entry["message"]) if event == "lines left out" else event
            seen[name[0]] += int(str(entry.get("left_out", 1)))
            if event != "lines left out":
                times = recent.setdefault(name[0], deque())
                times.append(now_ms)
                while times[0] <= now_ms - 60_000:
                    times.popleft()
                assert len(times) <= 10, seed
    written.clock.advance(2 * BRAKE_INTERVAL_MS)  # No count is later.
    for entry in written.take_entries():
        seen[str(entry["message"])[0]] += int(str(entry["left_out"]))
    assert seen == logged, f"seed {seed}: each line is written or counted once"


def test_messages_differ_by_logger_level_format_and_exception(written: Written) -> None:
    def log_all() -> None:
        logger.info("one %d", 1)
        logger.info("two %d", 1)
        logger.warning("one %d", 1)
        BUSY.info("one %d", 1)
        logger.info(Event("an event", "one 1", {}))
        for error in (ValueError("v"), KeyError("k")):
            logger.info("one %d", 1, exc_info=error)

    for _ in range(MAX_LINES):
        log_all()
    assert len(written.take()) == 7 * MAX_LINES
    log_all()
    assert written.take() == []


def test_a_format_without_words_is_as_many_messages_as_it_has_texts(written: Written) -> None:
    for number in range(50):
        logger.warning("%s", f"problem {number} of a disk")
        logger.warning(f"without arguments, {number}")
    logger.warning("%s", "problem of a network")
    told = written.take()
    assert [each for each in told if "disk" in each] == [
        f"problem {number} of a disk" for number in range(MAX_LINES)
    ]
    assert len([each for each in told if "arguments" in each]) == MAX_LINES
    assert told[-1] == "problem of a network"


def test_a_logger_at_debug_writes_every_line(written: Written) -> None:
    logger.setLevel(logging.DEBUG)
    for number in range(100):
        logger.warning("line %d", number)
        BUSY.warning("line %d", number)
    assert len(written.take()) == 100 + MAX_LINES


def test_an_event_that_has_its_own_brake_has_only_that(written: Written) -> None:
    for number in range(100):
        logger.warning(Event("denied", f"denied {number}", {}, is_counted=True))
    assert len(written.take()) == 100


def test_counts_come_before_the_next_line_where_no_loop_runs(written: Written) -> None:
    def flood() -> None:
        for number in range(MAX_LINES + 1):
            logger.warning("line %d", number)

    configure_logging("json", "INFO", stream=written.stream, clock=LooplessClock(written.clock))
    flood()
    written.clock.advance(2 * BRAKE_INTERVAL_MS)
    assert len(written.take()) == MAX_LINES
    logger.warning("another")
    assert written.take() == ["lines left out", "another"]
    flood()
    configure_logging("json", "INFO", stream=written.stream)
    assert written.take() == [f"line {number}" for number in range(MAX_LINES)] + ["lines left out"]


def test_lines_of_many_threads_are_written_or_counted(written: Written) -> None:
    def flood() -> None:
        for number in range(500):
            logger.warning("line %d", number)

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    written.clock.advance(BRAKE_INTERVAL_MS)
    *lines, count = written.take_entries()
    assert (len(lines), count["left_out"]) == (MAX_LINES, 2_000 - MAX_LINES)


def test_arguments_that_do_not_fit_are_reported_as_logging_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)
    handler = BrakedHandler(io.StringIO(), ManualClock())
    for arguments in (("no number",), (7,)):
        handler.handle(logging.LogRecord("moldau", 30, "", 0, "line %d", arguments, None))
    assert "Logging error" in capsys.readouterr().err
    assert handler.stream.getvalue() == "line 7\n"  # type: ignore[attr-defined]


def test_memory_is_bounded_and_what_finds_no_room_is_counted(written: Written) -> None:
    for number in range(2 * MAX_MESSAGES):
        logger.warning("%s", chr(0x4E00 + number))
    assert len(written.take()) == MAX_MESSAGES
    written.clock.advance(BRAKE_INTERVAL_MS)
    counts = [int(str(each["left_out"])) for each in written.take_entries()]
    assert sum(counts) == MAX_MESSAGES
    assert len(counts) == MAX_SENDERS_COUNTED + 1


def test_each_partition_has_its_lines_but_not_each_of_a_great_many(written: Written) -> None:
    most = int(MAX_MESSAGES * SUBJECTS_SHARE)
    for number in range(3 * most):
        for _ in range(MAX_LINES + 1):
            logger.error("%s: UNCLEAN LEADER ELECTION: broker %d", f"t-{number}", 1)
    told = written.take()
    assert len(told) == most * MAX_LINES
    assert f"t-{most - 1}: UNCLEAN LEADER ELECTION: broker 1" in told
    logger.error("%s: another message", "t-0")
    assert written.take() == ["t-0: another message"], "a flood hides no other message"
    written.clock.advance(BRAKE_INTERVAL_MS)
    *each, others = written.take_entries()
    assert len(each) == most
    assert (others["left_out"], others["level"]) == (2 * most * (MAX_LINES + 1), "error")
    assert others["message"] == "%s: UNCLEAN LEADER ELECTION: broker %d"


@pytest.mark.parametrize("name", ["10.0.0.1:9092", "/data/t-1", "t", "a client-1", ""])
def test_addresses_and_what_clients_choose_are_no_subjects(written: Written, name: str) -> None:
    for number in range(MAX_LINES + 1):
        logger.warning("%s is slow", f"{name}{number}" if "-" not in name else f"{number}{name}")
    assert len(written.take()) == MAX_LINES


class LooplessClock:
    """The time of another clock, and the timers that a thread without a loop has."""

    def __init__(self, clock: ManualClock) -> None:
        self.now_ms, self.monotonic_ms = clock.now_ms, clock.monotonic_ms
        self.thread_ms, self.call_later = clock.thread_ms, SystemClock().call_later


# -- the counting alone ------------------------------------------------------------------------


def test_a_sender_leaves_room_for_others_and_their_number_is_bounded() -> None:
    clock = ManualClock(monotonic_ms=0)
    brake: Brake[str] = Brake(clock, max_lines=1, interval_ms=10, max_messages=4, senders_share=0.5)
    for number in range(10):
        brake.take(number, lambda: "of a", ("a",))
    assert brake.take(100, lambda: "of b", ("b",)) == "of b"
    assert brake.take(101, lambda: "of b", ("b",)) == "of b"
    for number in range(MAX_SENDERS_COUNTED + 5):
        assert brake.take(200 + number, lambda: "no room", (f"c{number}",)) is None
    assert brake.take_counts() == []
    assert brake.due_ms() == 10
    clock.advance(10)
    counts = brake.take_counts()
    assert counts[0] == LeftOut(None, ("a",), 8)
    assert LeftOut(None, OTHERS, 6) in counts
    assert len(counts) == MAX_SENDERS_COUNTED + 1
    assert sum(each.line_count for each in counts) == 8 + MAX_SENDERS_COUNTED + 5
    assert brake.due_ms() is None
    assert brake.take(0, lambda: "of a", ("a",)) == "of a", "there is room again"


def test_places_of_senders_are_bounded_and_half_are_for_new_first_names() -> None:
    clock = ManualClock()
    brake: Brake[str] = Brake(clock, max_lines=1, interval_ms=10, max_messages=1, max_senders=100)

    def taken(first: str, numbers: range) -> int:
        lines = [brake.take((first, n), lambda: "line", (first, str(n))) for n in numbers]
        return sum(line is not None for line in lines)

    for _ in range(2):
        assert taken("a", range(99)) == 25
        assert taken("b", range(99)) == 13
        assert sum(taken(f"c{number}", range(1)) for number in range(99)) == 100 - 25 - 13
        clock.advance(10)
        counts = brake.take_counts()
        assert sum(each.line_count for each in counts) == 3 * 99 - 100
        assert brake.due_ms() is None, "all places are free again"


def test_room_is_halved_from_sender_to_sender() -> None:
    brake: Brake[str] = Brake(
        ManualClock(), max_lines=1, interval_ms=10, max_messages=64, max_senders=10
    )
    taken: Counter[int] = Counter()
    for sender in range(11):
        for number in range(100):
            line = brake.take((sender, number), lambda: "line", (f"{sender}",))
            taken[sender] += line is not None
    assert [*taken.values()] == [33, 17, 9, 5, 3, 2, 2, 1, 1, 1, 0]


def test_a_count_shows_the_first_line_that_was_left_out() -> None:
    clock = ManualClock()
    brake: Brake[int] = Brake(clock, max_lines=2, interval_ms=10, max_messages=1)
    samples = iter(range(9))
    took = [brake.take("m", lambda: next(samples)) for _ in range(4)]
    assert took == [0, 0, None, None]
    clock.advance(10)
    assert brake.take_counts() == [LeftOut(1, OTHERS, 2)]
    assert brake.take("m", lambda: next(samples)) == 2
    assert brake.take_counts(with_early=True) == []
