"""Runs seeds of a simulation: one with its trace, a range, or as many as there is time for.

Owns: the command line, statistics, the command that replays a failure. Must not: choose what a seed
does (the simulation's `make` does). Invariant: every failure is printed with its replay command.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Protocol

from tests.kit.injected_bugs import InjectedBug
from tests.kit.verdict import Verdict

PROGRESS_S = 60.0
BASE_DISTANCE = 10_000
MOST_SEEDS = 500
"""So many may a bug take in a report."""


class Violation(Verdict):
    """Something that must never happen has happened. `kind` is a short name for statistics."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class World(Protocol):
    """What a seed's run leaves behind."""

    faults: Counter[str]
    counts: Counter[str]
    """What is worth a line about a run besides its faults: commits, elections."""
    history: deque[str]
    """The newest lines of the trace."""

    @property
    def event_count(self) -> int: ...

    @property
    def virtual_s(self) -> float: ...

    def digest(self) -> str:
        """Stands for the whole trace."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is fixed whatever the seed says: how many controllers, which faults, an injected bug."""

    controllers: int | None = None
    faults: tuple[str, ...] = ()
    bug: str = ""

    def options(self) -> str:
        """The command line's options that say the same."""
        text = "" if self.controllers is None else f" --controllers {self.controllers}"
        text += f" --faults {','.join(self.faults)}" if self.faults else ""
        return text + (f" --bug {self.bug}" if self.bug else "")


FREE = Choice()


@dataclass(slots=True)
class Outcome:
    """What became of one seed."""

    seed: str
    failure: str | None
    kind: str
    """The violation's, or the exception's name."""
    event_count: int
    faults: Counter[str]
    counts: Counter[str]
    digest: str
    virtual_s: float
    history: list[str]

    @property
    def fault_count(self) -> int:
        return self.faults.total()

    def line(self) -> str:
        """The result in one line."""
        return (
            f"seed {self.seed}: {self.event_count} events, {self.fault_count} faults, "
            f"{self.virtual_s:.0f} virtual s, {self.digest}"
        )


class Statistics:
    """Adds up outcomes."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.virtual_s = 0.0
        self.began = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.events.append(outcome.event_count)
        self.faults += outcome.faults
        self.counts += outcome.counts
        self.virtual_s += outcome.virtual_s
        if outcome.failure is not None:
            self.failures[outcome.kind] += 1

    @property
    def median_events(self) -> int:
        return sorted(self.events)[len(self.events) // 2]

    def __str__(self) -> str:
        if not self.events:
            return "no seeds"
        seeds = len(self.events)
        faults, counts, failures = (
            ", ".join(f"{count} {kind}" for kind, count in sorted(each.items()))
            for each in (self.faults, self.counts, self.failures)
        )
        return (
            f"{seeds} seeds, {sum(self.events)} events in {time.monotonic() - self.began:.0f} s, "
            f"{self.virtual_s:.0f} virtual s; "
            f"events per seed: median {statistics.median(self.events):.0f}, "
            f"from {min(self.events)} to {max(self.events)}; "
            f"faults per seed: {self.faults.total() / seeds:.1f} ({faults}); {counts}; "
            f"violations: {failures or 'none'}"
        )


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulation: how a seed's world is made, and the bugs that can be injected.

    `make` draws everything from the seed, and returns the world and what runs it to its end.
    """

    module: str
    make: Callable[[str, Choice, bool], tuple[World, Callable[[], None]]]
    bugs: Mapping[str, InjectedBug]
    bug_controllers: int | None = None
    """So many controllers has a cluster with an injected bug, in the gate."""
    bug_seeds: int = 20
    """So many seeds may a bug take to be found, in the gate."""
    failures: tuple[type[Exception], ...] = (Violation,)
    """What ends a run as a finding; everything else is a bug of the simulation."""
    print_logs: Callable[[], None] | None = None
    """Puts what the nodes log into the trace."""

    def run_seed(self, seed: str, choice: Choice = FREE, *, print_trace: bool = False) -> Outcome:
        """Run one seed to its end or first violation."""
        with self.bugs[choice.bug].injected() if choice.bug else nullcontext():
            world, run = self.make(seed, choice, print_trace)
            failure, kind = None, ""
            try:
                run()
            except self.failures as error:
                failure = f"{type(error).__name__} {error}"
                kind = error.kind if isinstance(error, Violation) else type(error).__name__
                if print_trace:
                    traceback.print_exception(error)
            return Outcome(
                seed=seed,
                failure=failure,
                kind=kind,
                event_count=world.event_count,
                faults=world.faults,
                counts=world.counts,
                digest=world.digest(),
                virtual_s=world.virtual_s,
                history=list(world.history),
            )

    def replay_command(self, seed: str, choice: Choice = FREE) -> str:
        """One line that runs a seed again, with its trace."""
        return f"python -m {self.module} --seed {seed}{choice.options()}"

    def describe_failure(self, outcome: Outcome, choice: Choice = FREE) -> str:
        """What a person needs of a failed seed."""
        tail = "\n".join(outcome.history[-40:])
        command = self.replay_command(outcome.seed, choice)
        return f"{tail}\n\nseed {outcome.seed}: {outcome.failure}\nreplay: {command}"

    def outcomes(
        self, seeds: Iterable[int], choice: Choice = FREE, workers: int = 1
    ) -> Iterator[Outcome]:
        """The outcomes in the order of the seeds; several workers may have begun a few more than
        asked for.
        """
        if workers == 1:
            for seed in seeds:
                yield self.run_seed(str(seed), choice)
            return
        remaining = iter(seeds)
        with ProcessPoolExecutor(workers, initializer=silence) as pool:
            running: deque[Future[Outcome]] = deque()
            try:
                while True:
                    while len(running) < 2 * workers and (seed := next(remaining, -1)) >= 0:
                        running.append(pool.submit(self.run_seed, str(seed), choice))
                    if not running:
                        return
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()

    def run_seeds(
        self,
        first_seed: int,
        choice: Choice = FREE,
        *,
        seeds: int | None = None,
        seconds: float | None = None,
    ) -> tuple[Statistics, Outcome | None]:
        """Run seeds until there are enough, the time is over, or one fails."""
        total = Statistics()
        numbers = range(first_seed, sys.maxsize if seeds is None else first_seed + seeds)
        for outcome in self.outcomes(numbers, choice):
            total.add(outcome)
            if outcome.failure is not None:
                return total, outcome
            if seconds is not None and time.monotonic() - total.began >= seconds:
                break
        return total, None

    def main(self, arguments: list[str] | None = None) -> int:
        """The command line; 1 when a seed failed."""
        options = self._parser().parse_args(arguments)
        silence()
        if options.logs and self.print_logs is not None:
            self.print_logs()
        if options.report is not None:
            for name in [options.bug] if options.bug else self.bugs:
                print(self._report_row(name, options.report), flush=True)
            return 0
        faults = tuple(options.faults.split(",")) if options.faults else ()
        choice = Choice(options.controllers, faults, options.bug)
        if options.seed is not None:
            outcome = self.run_seed(options.seed, choice, print_trace=not options.quiet)
            print(outcome.line())
            print("faults:", dict(sorted(outcome.faults.items())))
            print("counts:", dict(sorted(outcome.counts.items())))
            if outcome.failure is not None:
                print(self.describe_failure(outcome, choice))
            return int(outcome.failure is not None)
        if options.seeds is None and options.minutes is None and options.first_seed is None:
            options.minutes = 1.0
        return self._run_many(options, choice)

    def _run_many(self, options: argparse.Namespace, choice: Choice) -> int:
        first, count = _range_of(options)
        total = Statistics()
        shown = total.began
        seeds = range(first, sys.maxsize if count is None else first + count)
        for outcome in self.outcomes(seeds, choice, options.workers):
            total.add(outcome)
            if not options.quiet:
                print(outcome.line(), flush=True)
            if outcome.failure is not None:
                print(self.describe_failure(outcome, choice), flush=True)
            now = time.monotonic()
            if now - shown > PROGRESS_S:
                shown = now
                print(total, flush=True)
            if options.minutes is not None and now - total.began >= options.minutes * 60:
                break
        print(f"from seed {first}: {total}")
        return int(bool(total.failures))

    def _report_row(self, name: str, base_count: int) -> str:
        """A row of a table in docs/testing.md: how many seeds the bug takes, from several bases."""
        bug = self.bugs[name]
        found = [self._seeds_to_detection(bug, BASE_DISTANCE * n) for n in range(1, 1 + base_count)]
        counts = [count for count, _ in found]
        kinds = Counter(kind for _, kind in found)
        return (
            f"| `{name}` | {bug.breaks} | {statistics.median(counts):g} | {max(counts)} | "
            f"{', '.join(kind for kind, _ in kinds.most_common())} |"
        )

    def _seeds_to_detection(self, bug: InjectedBug, base: int) -> tuple[int, str]:
        """How many seeds from `base` on, and what was violated."""
        choice = Choice(self.bug_controllers, bug.faults, bug.name)
        total, failed = self.run_seeds(base, choice, seeds=MOST_SEEDS)
        if failed is None:
            return MOST_SEEDS + 1, "not caught"
        return len(total.events), failed.kind

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=__doc__)
        parser.add_argument("--seed", help="replay this one seed, with its trace")
        parser.add_argument("--seeds", help="a range of seeds, a-b")
        parser.add_argument("--minutes", type=float, help="as many seeds as fit")
        parser.add_argument(
            "--first-seed", type=int, help="where they begin (random for --minutes)"
        )
        parser.add_argument("--controllers", type=int, help="so many, whatever the seed says")
        parser.add_argument("--faults", help="only these, by comma: see SCENARIOS in nemesis.py")
        parser.add_argument("--bug", default="", choices=["", *self.bugs], help="inject it")
        parser.add_argument("--workers", type=int, default=1, help="processes")
        parser.add_argument("--quiet", action="store_true", help="print failures and sums only")
        parser.add_argument(
            "--logs", action="store_true", help="with --seed: what the nodes log, in the trace"
        )
        parser.add_argument(
            "--report", type=int, metavar="BASES", help="how many seeds each bug takes to be found"
        )
        return parser


def silence() -> None:
    """Simulated nodes log what they would in production; a failure brings its own history."""
    logging.getLogger("moldau").setLevel(logging.CRITICAL + 1)


def _range_of(options: argparse.Namespace) -> tuple[int, int | None]:
    """The first seed and how many; None for as many as there is time for."""
    if options.seeds is not None:
        first, _, last = options.seeds.partition("-")
        return int(first), int(last or first) - int(first) + 1
    first = options.first_seed
    if options.minutes is not None:
        return (Random().randrange(10**9) if first is None else first), None
    return (1 if first is None else first), 20
