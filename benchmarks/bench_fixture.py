"""The first test of a project that uses the pytest plugin, with a consumer group, start to end.

What is included: a process of pytest, from its spawn to its end, whose only test takes the fixtures
`moldau_cluster` and `moldau_topic` (a node is formatted and started, a topic created), produces a
record with acks=all, and reads it as the first member of a new group. The same with a test that
does nothing is pytest's own share; the phases are pytest's figures.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.nodes import temporary_directory

LIMIT_S: Final = 1.5
PHASES: Final = ("setup", "call", "teardown")

NOTHING: Final = "def test_nothing(): pass\n"
GROUP: Final = """
from moldau.client.sync import Consumer, Producer

def test_a_group(moldau_cluster, moldau_topic):
    servers = moldau_cluster.bootstrap_server
    with Producer(servers) as producer:
        producer.send(moldau_topic, b"first")
    with Consumer(servers, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([moldau_topic])
        assert consumer.getone().value == b"first"
"""
#: Prints what each phase of the test took.
CONFTEST: Final = """
def pytest_runtest_logreport(report):
    with open("phases", "a") as phases:
        print(report.when, report.duration, file=phases)
"""


def run(effort: Effort) -> Report:
    """Run both tests by turns."""
    _seconds_of(GROUP)  # brings files into the page cache
    whole: list[float] = []
    alone: list[float] = []
    by_phase: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for _ in range(effort.rounds):
        seconds, phases = _seconds_of(GROUP)
        whole.append(seconds)
        for phase in PHASES:
            by_phase[phase].append(phases[phase])
        alone.append(_seconds_of(NOTHING)[0])
    table = Table(("what, seconds", "minimum / median / maximum"))
    test = Spread(tuple(map(sum, zip(*by_phase.values(), strict=True))))
    table.add("the test with its fixtures: setup, call and teardown", test.text())
    for phase in PHASES:
        table.add(f"of that: {phase}", Spread.of(by_phase[phase]).text())
    table.add("the whole process of pytest", Spread.of(whole).text())
    table.add("the same with a test that does nothing", Spread.of(alone).text())
    report = Report("A project's first test with a consumer group")
    report.tables.append(table)
    report.targets.append(at_most(f"first test with a group ≤ {LIMIT_S} s", test, LIMIT_S))
    return report


def _seconds_of(test: str) -> tuple[float, dict[str, float]]:
    """Seconds of the whole process, and of the test's phases."""
    with temporary_directory() as directory:
        (directory / "test_first.py").write_text(test)
        (directory / "conftest.py").write_text(CONFTEST)
        begin = time.perf_counter()
        _pytest(directory)
        seconds = time.perf_counter() - begin
        lines = (directory / "phases").read_text().splitlines()
    return seconds, {phase: float(text) for phase, text in map(str.split, lines)}


def _pytest(directory: Path) -> None:
    # Other plugins that are installed here are not what is measured.
    plugins = ("asyncio", "hypothesispytest", "timeout", "xdist", "cacheprovider")
    options = [option for plugin in plugins for option in ("-p", f"no:{plugin}")]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "test_first.py"],
        cwd=directory,
        check=True,
        stdout=subprocess.DEVNULL,
    )
