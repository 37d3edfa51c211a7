"""The supervisor over scripted processes: start, back-off, the order of the end."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moldau.local.supervisor import RestartPolicy
from tests.kit.waiting import until

pytestmark = pytest.mark.real

#: Supervises the nodes named in its arguments, `-` between the groups.
SUPERVISE = """
import logging
import sys
from pathlib import Path
from moldau.local import node_process
from moldau.local.node_process import NodeProcess
from moldau.local.supervisor import RestartPolicy, Supervisor
from moldau.local.watchdog import Watchdog

home, fake, *names = sys.argv[1:]
watchdog = Watchdog(None)
groups = [{}]
node_process.COMMAND = (sys.executable, fake)
for name in names:
    if name == "-":
        groups.append({})
    else:
        directory = Path(home) / name
        groups[-1][name] = NodeProcess(
            directory / "script", directory / "log", watchdog=watchdog
        )
policy = RestartPolicy(first_ms=1, most_ms=20)
say = lambda line: print(line, flush=True)
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
status = Supervisor(groups, policy=policy).run(lambda: say("all ready"))
watchdog.close()
sys.exit(status)
"""
FAKE = Path(__file__).with_name("fake_node.py")


class Run:
    """A supervisor at work and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """Read on to a line that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if match := re.search(pattern, self.lines[-1]):
                return match
        raise AssertionError(f"no {pattern} in {self.lines}")

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal, read to the end, return the status."""
        if number is not None:
            self.process.send_signal(number)
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().splitlines()
        return self.process.wait()


@contextmanager
def supervised(home: Path, *groups: dict[str, str]) -> Iterator[Run]:
    names: list[str] = []
    for group in groups:
        names += ["-"] if names else []
        for name, script in group.items():
            (home / name).mkdir()
            (home / name / "script").write_text(script)
            names.append(name)
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(home), str(FAKE), *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Run(process)
        finally:
            process.kill()


def start_count(home: Path, name: str) -> int:
    return len((home / name / "starts").read_text().splitlines())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_start_and_stop_group_by_group(tmp_path: Path, number: signal.Signals):
    brokers, controllers = {"b1": "serve", "b2": "serve"}, {"c1": "serve"}
    with supervised(tmp_path, brokers, controllers) as run:
        run.until("^all ready$")
        assert sum(line.endswith("serves on h:1") for line in run.lines) == 3
        assert run.end(number) == 0
    stopped = (tmp_path / "stopped").read_text().split()
    assert (sorted(stopped[:2]), stopped[2:]) == (["b1", "b2"], ["c1"])
    assert [line for line in run.lines if line.endswith("stopped")] == [
        "b1 stopped",
        "b2 stopped",
        "c1 stopped",
        "stopped",
    ]


def test_a_node_that_ends_is_started_again_and_says_why(tmp_path: Path):
    with supervised(tmp_path, {"n": "exit 1\nexit 1\nserve", "m": "serve"}) as run:
        run.until("^all ready$")
        whys = [line for line in run.lines if " ended " in line]
        assert len(whys) == 2
        for why in whys:
            assert re.fullmatch(
                r"n ended with status 1 \(as the script says\); it starts again in 0\.0 s", why
            )
        assert start_count(tmp_path, "n") == 3
        process_id = re.search(r"m starts as process (\d+)", "\n".join(run.lines))
        assert process_id is not None
        os.kill(int(process_id[1]), signal.SIGKILL)
        run.until(r"^m ended by SIGKILL; it starts again")
        run.until(r"^m serves on")
        assert "all ready" not in run.lines[run.lines.index("all ready") + 1 :]
        assert run.end(signal.SIGTERM) == 0


def test_a_wrong_configuration_ends_the_start(tmp_path: Path):
    with supervised(tmp_path, {"n": "exit 2", "m": "serve"}) as run:
        assert run.end() == 1
    assert "n ended with status 2 (as the script says); it is not started again" in run.lines
    assert "m stopped" in run.lines
    assert start_count(tmp_path, "n") == 1


def test_a_node_that_never_serves_ends_the_start(tmp_path: Path):
    with supervised(tmp_path, {"n": "exit 1", "m": "serve"}) as run:
        assert run.end() == 1
    assert "n ended with status 1 (as the script says); it is not started again" in run.lines
    assert "m stopped" in run.lines
    assert start_count(tmp_path, "n") == 3


def test_a_wrong_configuration_later_costs_only_that_node(tmp_path: Path):
    with supervised(tmp_path, {"n": "serve\nexit 2", "m": "serve"}) as run:
        process_id = run.until(r"^n starts as process (\d+)")[1]
        run.until("^all ready$")
        os.kill(int(process_id), signal.SIGKILL)
        run.until("n ended with status 2 .* it is not started again")
        assert run.end(signal.SIGTERM) == 0
    assert "m stopped" in run.lines


def test_a_second_signal_kills_what_does_not_stop(tmp_path: Path):
    with supervised(tmp_path, {"n": "stuck"}) as run:
        run.until("^all ready$")
        run.process.send_signal(signal.SIGTERM)
        run.until("^n is asked to stop$")
        assert run.end(signal.SIGTERM) == 1
    assert run.lines[-2:] == ["n ended by SIGKILL", "stopped"]


def test_a_silent_node_keeps_the_others_from_being_all_ready(tmp_path: Path):
    with supervised(tmp_path, {"n": "silent", "m": "serve"}) as run:
        run.until("^m serves on")
        assert run.end(signal.SIGTERM) == 0
    assert "all ready" not in run.lines


def test_no_node_outlives_a_supervisor_that_is_killed(tmp_path: Path):
    with supervised(tmp_path, {"n": "serve"}) as run:
        process_id = int(run.until(r"^n starts as process (\d+)")[1])
        run.until("^all ready$")
        run.end(signal.SIGKILL)

    def is_gone() -> bool:
        try:
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        return state == "Z"

    until(is_gone, what="the node is gone")


def test_the_pause_doubles_up_to_its_limit_with_jitter():
    policy = RestartPolicy(first_ms=100, most_ms=1_000)
    source = random.Random(7)
    for failure_count, middle_ms in enumerate((100, 200, 400, 800), start=1):
        pauses = {policy.pause_ms(failure_count, source) for _ in range(50)}
        assert len(pauses) > 10
        assert all(0.8 * middle_ms <= pause <= min(1_000, 1.2 * middle_ms) for pause in pauses)
    assert max(policy.pause_ms(10_000, source) for _ in range(50)) == 1_000
