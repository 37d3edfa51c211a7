"""`make long`: new seeds for everything that takes one, soaks, fuzzers, mutants, minutes of Spark.

Owns: the kinds of search, how they share the minutes and the cores, and one line about each. Must
not: judge what a search did (its exit status does). Invariant: every command is drawn from the
run's seed, and what one wrote that found something is kept in `build/long/`.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from random import Random

from tests.kit import unsteady
from tests.kit.kinds import TESTS, Kind, kind_at

ROOT = TESTS.parent
OUTPUT = Path("build/long")
ENVIRONMENT = {"MOLDAU_HYPOTHESIS": "long", "MOLDAU_TEST_PATIENCE": "20"}
"""An example takes as long as it takes; there are many."""

STUCK_S = 1_800.0
"""A command that goes on for so much longer than its share hangs, which is a finding."""

SKIPPED = 2
"""The exit status of a command that cannot run here."""

Arguments = Callable[[int, float], Sequence[str]]
"""What a command is given: its seed, and how many minutes it should take."""


@dataclass(frozen=True, slots=True)
class Search:
    """One kind of search: commands, one after the other, each with its own seed."""

    name: str
    arguments: Sequence[Arguments]
    """The arguments of `python`; more than one are taken in turn, in an order that is drawn, each
    once.
    """
    events: str
    """A pattern whose first group counts what happened; the last match of an output counts."""
    weight: int = 1
    """Its part of the minutes."""
    least_minutes: float = 0.1
    """With less it finds nothing."""
    seeds: str = ""
    """As `events`: how many seeds a command ran; one without."""
    is_report: bool = False
    """What it finds says something about tests, not about the product."""


@dataclass(slots=True)
class Result:
    """What came of a search."""

    name: str
    seeds: int = 0
    events: int = 0
    findings: int = 0
    seconds: float = 0.0
    skipped: str = ""

    def line(self) -> str:
        """All of it."""
        counts = f"{self.seeds:,} seeds, {self.events:,} events, {self.findings:,} violations"
        skipped = f"; not here: {self.skipped}" if self.skipped else ""
        return f"{self.name:<14} {counts}, {self.seconds / 60:.1f} minutes{skipped}"


def _minutes(module: str, *options: str) -> Arguments:
    return lambda seed, minutes: (
        *("-m", module, f"--seed={seed}", f"--minutes={minutes:.2f}"),
        *options,
    )


def _pieces(module: str, *options: str) -> Arguments:
    return lambda seed, _minutes: ("-m", module, f"--seed={seed}", *options)


def _simulation(module: str) -> Arguments:
    return lambda seed, minutes: (
        *("-m", f"tests.simulation.{module}", f"--first-seed={seed}"),
        *(f"--minutes={minutes:.2f}", "--quiet"),
    )


def _pytest(place: str, kind: Kind) -> Arguments:
    return lambda seed, _minutes: (
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", str(kind)),
        *(f"--hypothesis-seed={seed}", place),
    )


def _places(kind: Kind, *words: str) -> list[Arguments]:
    """The test files of a kind that have one of the words."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        place = path.relative_to(TESTS).as_posix()
        text = path.read_text(encoding="utf-8")
        if kind_at(place) is kind or any(word in text for word in words):
            found.append(_pytest(f"tests/{place}", kind))
    return found


def searches() -> list[Search]:
    """All of them."""
    simulated = {"seeds": r"(\d+) seeds, \d+ events", "events": r"\d+ seeds, (\d+) events"}
    return [
        Search("quorum", [_simulation("run")], **simulated),
        Search("nodes", [_simulation("cluster.run")], **simulated),
        Search("replication", [_simulation("replication.run")], weight=2, **simulated),
        Search("transactions", [_simulation("transactions.run")], weight=2, **simulated),
        Search("random tests", _random_tests(), r"(\d+) passed", weight=2),
        Search("long tests", _places(Kind.LONG, "mark.long"), r"(\d+) passed", weight=2),
        Search(
            "soak",
            [_minutes("tests.system.replication.soak")],
            r"acknowledged ([\d,]+)",
            least_minutes=2,
        ),
        Search(
            "soak of groups",
            [_minutes("tests.system.transactions.soak_child")],
            r"committed ([\d,]+)",
            least_minutes=2,
        ),
        Search("topics", [_minutes("tests.system.topics.soak")], r"(\d+) rounds", least_minutes=1),
        Search(
            "client",
            [_pieces("tests.system.client.exactly_once", "--records=50000", "--kills=4")],
            r"([\d,]+) transactions in",
        ),
        Search(
            "faces",
            [_pieces("tests.unit.client.fire.run", "--records=8000")],
            r"([\d,]+) records",
        ),
        Search("listeners", [_minutes("tests.system.security.front_ends")], r"([\d,]+) cases"),
        Search(
            "group requests",
            [_pieces("tests.interop.differential.groups.run", "--sequences=2000")],
            r"(\d+) sequences",
        ),
        Search(
            "mutants",
            [_pieces("tests.mutation.run", "--count=40")],
            r"(\d+)/\d+ \w+ in",
            is_report=True,
        ),
    ]


def _random_tests() -> list[Arguments]:
    """Tests of the gate that draw something."""
    words = ("from hypothesis", "drawn_seed")
    return [
        _pytest(path.relative_to(ROOT).as_posix(), Kind.GATE)
        for path in sorted(TESTS.rglob("test_*.py"))
        if any(word in path.read_text(encoding="utf-8") for word in words)
        and kind_at(path.relative_to(TESTS).as_posix()) is Kind.GATE
    ]


def shares(found: Sequence[Search], minutes: float) -> dict[str, float]:
    """The minutes of each; those that would get too few get none, and the others have them."""
    left = [*found]
    while left:
        each = minutes / sum(search.weight for search in left)
        enough = [search for search in left if each * search.weight >= search.least_minutes]
        if enough == left:
            return {search.name: each * search.weight for search in left}
        # The hungriest goes first: what it leaves may be enough for the others.
        left.remove(
            max(
                (search for search in left if search not in enough),
                key=lambda search: search.least_minutes,
            )
        )
    return {}


@dataclass(slots=True)
class LongRun:
    """Runs searches side by side, as many as there are cores."""

    seed: int
    output: Path
    workers: int
    say: Callable[[str], None] = print
    results: list[Result] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, found: Sequence[Search], minutes: float) -> int:
        """The exit status: 1 when something was found."""
        self.output.mkdir(parents=True, exist_ok=True)
        given = shares(found, minutes * self.workers)
        for search in found:
            if search.name not in given:
                self.say(f"{search.name:<14} left out: {minutes:g} minutes are too few")
        waiting = sorted(
            (search for search in found if search.name in given),
            key=lambda search: -given[search.name],
        )
        turns = iter(waiting)
        threads = [
            threading.Thread(target=self._work, args=(turns, given)) for _ in range(self.workers)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for process in [*self._running]:
                _end(process)
        self.say("")
        for result in self.results:
            self.say(result.line())
        for text in self.failed:
            self.say(text)
        return int(bool(self.failed))

    def _work(self, turns: Iterator[Search], given: Mapping[str, float]) -> None:
        while True:
            with self._lock:
                search = next(turns, None)
            if search is None:
                return
            result = self._search(search, given[search.name])
            with self._lock:
                self.results.append(result)
            self.say(result.line())

    def _search(self, search: Search, minutes: float) -> Result:
        dice = Random(f"{self.seed} {search.name}")
        result = Result(search.name)
        began = time.monotonic()
        commands = _commands(search.arguments, dice)
        while (left := minutes - (time.monotonic() - began) / 60) > 0:
            arguments = next(commands, None)
            if arguments is None or (result.seeds and left < search.least_minutes):
                break
            seed = dice.randrange(1, 10**9)
            status, text = self._command(search, seed, arguments(seed, left), left)
            if status == SKIPPED and not search.name.endswith("tests"):
                result.skipped = (text.strip().splitlines() or ["?"])[-1]
                break
            result.seeds += _count(search.seeds, text) if search.seeds else 1
            result.events += _count(search.events, text)
            result.findings += status not in (0, 5)  # pytest: no test was left to run
        result.seconds = time.monotonic() - began
        return result

    def _command(
        self, search: Search, seed: int, arguments: Sequence[str], minutes: float
    ) -> tuple[int, str]:
        path = self.output / f"{search.name.replace(' ', '-')}-{seed}.log"
        environment = {**ENVIRONMENT, "MOLDAU_SEED": str(seed)}
        with path.open("wb") as written:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                status = process.wait(minutes * 60 + STUCK_S)
            except subprocess.TimeoutExpired:
                status = _end(process)
            self._running.discard(process)
        text = path.read_text(encoding="utf-8", errors="replace")
        if status in (0, 5, SKIPPED):
            path.unlink()
        else:
            said = " ".join(f"{name}={value}" for name, value in environment.items())
            replay = f"{said} .venv/bin/python {shlex.join(arguments)}"
            tail = "\n".join(text.splitlines()[-60:])
            found = f"{search.name}: status {status}, all of it in {path}\n{tail}\nreplay: {replay}"
            self.say(found)
            if not search.is_report:
                self.failed.append(f"{search.name}: replay: {replay}")
        return status, text


def _commands(arguments: Sequence[Arguments], dice: Random) -> Iterator[Arguments]:
    """One for ever, or several once each."""
    while len(arguments) == 1:
        yield arguments[0]
    yield from dice.sample(arguments, len(arguments))


def _count(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1].replace(",", "")) if found else 0


def _end(process: subprocess.Popen[bytes]) -> int:
    """With all that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def main(arguments: Sequence[str] | None = None, found: Sequence[Search] | None = None) -> int:
    """The command line; 1 when something was found."""
    found = searches() if found is None else found
    parser = argparse.ArgumentParser(prog="make long", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="in all (MINUTES=n)")
    parser.add_argument("--seed", type=int, default=None, help="of all seeds (SEED=n)")
    names = [search.name.replace(" ", "-") for search in found]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help='(ONLY="a b")')
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"make long MINUTES={options.minutes:g} SEED={seed}", flush=True)
    chosen = [search for search in found if search.name.replace(" ", "-") in options.only]
    run = LongRun(seed, ROOT / OUTPUT, options.workers, lambda text: print(text, flush=True))
    status = run.run(chosen, options.minutes)
    for row in unsteady.overdue(unsteady.read(ROOT / unsteady.FILE), date.today()):
        print(f"{unsteady.FILE}: {row.test} is there since {row.date}: find the cause, mend it")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
