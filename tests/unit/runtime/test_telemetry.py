"""Metrics, logs, loop lag."""

import gc
import io
import json
import logging
from collections.abc import Iterator

import pytest

from moldau.runtime.garbage_collector import GC_THRESHOLDS, freeze_garbage_collector
from moldau.runtime.telemetry import metrics
from moldau.runtime.telemetry.logs import AUDIT, audit_kept, configure_logging, set_level
from moldau.runtime.telemetry.metrics import Histogram, Registry
from tests.kit.manual_clock import ManualClock

NAME = "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec"


@pytest.fixture
def restored_logging() -> Iterator[None]:
    logger = logging.getLogger("moldau")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_the_same_name_and_labels_are_the_same_instrument() -> None:
    registry = Registry(ManualClock().monotonic_ms)
    registry.counter(NAME, topic="a").add(3)
    registry.counter(NAME, topic="a").add()
    registry.counter(NAME, topic="b").value += 1
    registry.gauge("g", lambda: 7.0)
    collected = {(metric.name, metric.labels): metric for metric in registry.collect()}
    assert collected[NAME, (("topic", "a"),)].instrument.value == 4
    assert collected["g", ()].instrument.value == 7.0
    registry.gauge("g", lambda: 2)
    assert collected["g", ()].instrument.value == 2
    with pytest.raises(AssertionError, match="counter"):
        registry.gauge(NAME, lambda: 2)
    registry.remove(NAME, topic="a")
    registry.remove(NAME, topic="b")
    assert [metric.name for metric in registry.collect()] == ["g"]


def test_strangers_cannot_fill_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_SERIES_PER_NAME", 5)
    registry = Registry(ManualClock().monotonic_ms)
    for number in range(100):
        registry.counter(NAME, client=str(number)).add()
    series = {metric.labels: metric.instrument.value for metric in registry.collect()}
    assert len(series) == 6
    assert series[("client", "other"),] == 95


def test_histogram() -> None:
    histogram = Histogram(bounds=(1.0, 10.0, 100.0))
    for value in range(1, 101):
        histogram.observe(float(value))
    assert histogram.counts == [1, 9, 90, 0]
    assert (histogram.count, histogram.total) == (100, 5050.0)
    histogram.observe(5000.0)
    assert histogram.counts == [1, 9, 90, 1]


def test_meter_rates_fade() -> None:
    clock = ManualClock()
    meter = Registry(clock.monotonic_ms).meter(NAME)
    for _ in range(60):
        meter.mark(50)
        clock.advance(1000)
        meter.rate()
    assert meter.rate() == pytest.approx(50)
    assert meter.value == 3000
    clock.advance(60_000)
    assert meter.rate() == pytest.approx(50 / 2.718, rel=0.05)


@pytest.mark.usefixtures("restored_logging")
def test_one_event_is_one_line_of_json() -> None:
    stream = io.StringIO()
    configure_logging("json", "INFO", stream=stream)
    logger = logging.getLogger("moldau.test")
    logger.debug("not shown")
    logger.warning("from %s\nforged", "peer", extra={"topic": "t"})
    entry = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert entry["event"] == "from peer\nforged"
    assert (entry["level"], entry["logger"], entry["topic"]) == ("warning", "moldau.test", "t")
    assert entry["timestamp"].endswith("Z")


@pytest.mark.usefixtures("restored_logging")
def test_console_lines_cannot_be_forged() -> None:
    stream = io.StringIO()
    configure_logging("console", "INFO", stream=stream)
    logging.getLogger("moldau.test").info("a\nb\x1b[31m", extra={"partition": 3})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"INFO    test: a\nb\x1b[31m partition=3")
    try:
        raise ValueError("\x1b[31m\x9b")
    except ValueError:
        logging.getLogger("moldau.test").exception("failed")
    assert stream.getvalue().endswith("ValueError: \\x1b[31m\\x9b\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize(("no_color", "said"), [("", "\x1b[33mWARNING\x1b[0m"), ("1", "WARNING")])
def test_a_terminal_gets_colours_for_what_asks_for_attention(
    monkeypatch: pytest.MonkeyPatch, no_color: str, said: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    configure_logging("console", "INFO", stream=stream)
    logger = logging.getLogger("moldau.test")
    logger.info("calm")
    logger.warning("odd")
    calm, odd = stream.getvalue().splitlines()
    assert calm.endswith(" INFO    test: calm")
    assert odd.endswith(f" {said} test: odd")


@pytest.mark.usefixtures("restored_logging")
def test_levels_change_at_run_time() -> None:
    configure_logging("console", "INFO", stream=io.StringIO())
    logger = logging.getLogger("moldau.levels")
    set_level("debug")
    assert logger.isEnabledFor(logging.DEBUG)
    set_level("INFO")
    assert logger.getEffectiveLevel() == logging.INFO
    with pytest.raises(ValueError, match="LOUD"):
        set_level("LOUD")


@pytest.mark.usefixtures("restored_logging")
def test_loggers_of_the_audit_go_on_whatever_clients_change() -> None:
    configure_logging("console", "INFO", stream=io.StringIO())
    loggers = [logging.getLogger(name) for name in AUDIT]
    try:
        set_level("DEBUG")
        assert all(each.isEnabledFor(logging.DEBUG) for each in loggers)
        set_level("ERROR")
        assert {each.getEffectiveLevel() for each in loggers} == {logging.INFO}
        with audit_kept():
            for each in loggers:
                each.setLevel(logging.NOTSET)
        assert {each.getEffectiveLevel() for each in loggers} == {logging.INFO}
        assert logging.getLogger("moldau.storage").getEffectiveLevel() == logging.ERROR
        for each in loggers:
            each.setLevel(logging.NOTSET)
        configure_logging("console", "ERROR", stream=io.StringIO())
        set_level("CRITICAL")
        assert {each.getEffectiveLevel() for each in loggers} == {logging.ERROR}, "by its own file"
    finally:
        for each in loggers:
            each.setLevel(logging.NOTSET)


def test_the_collector_is_frozen() -> None:
    thresholds, frozen_count = gc.get_threshold(), gc.get_freeze_count()
    try:
        freeze_garbage_collector()
        assert gc.get_threshold() == GC_THRESHOLDS
        assert gc.get_freeze_count() > frozen_count
        assert gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)
