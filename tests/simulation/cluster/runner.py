"""Runs seeds of a simulation: one with its trace, a range, or as many as there is time for.

Owns: the command line, statistics, the command that replays a failure. Must not: choose what a seed
does (world and nemesis do).
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random

from tests.simulation.cluster.base_nemesis import BaseNemesis
from tests.simulation.cluster.base_world import BaseWorld
from tests.simulation.cluster.virtual_loop import UnhandledFailure, current_process
from tests.simulation.scheduler import Violation


@dataclass(frozen=True, slots=True)
class Choice:
    """What is fixed whatever the seed says: how many controllers, which faults, a bug put in."""

    controllers: int | None = None
    faults: tuple[str, ...] = ()
    mutation: str = ""

    def options(self) -> str:
        """The command line's options that say the same."""
        text = "" if self.controllers is None else f" --controllers {self.controllers}"
        text += f" --faults {','.join(self.faults)}" if self.faults else ""
        return text + (f" --mutation {self.mutation}" if self.mutation else "")


FREE = Choice()


@dataclass(slots=True)
class Outcome:
    """What became of one seed."""

    seed: str
    failure: str | None
    event_count: int
    fault_count: int
    faults: Counter[str]
    counts: Counter[str]
    digest: str
    virtual_s: float
    history: list[str]


class Statistics:
    """Adds up outcomes."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.virtual_s = 0.0
        self.began = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.events.append(outcome.event_count)
        self.faults += outcome.faults
        self.counts += outcome.counts
        self.virtual_s += outcome.virtual_s

    def __str__(self) -> str:
        if not self.events:
            return "no seeds"
        seeds = len(self.events)
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        return (
            f"{seeds} seeds in {time.monotonic() - self.began:.0f} s, "
            f"{self.virtual_s:.0f} virtual s; "
            f"events per seed: median {statistics.median(self.events):.0f}, "
            f"from {min(self.events)} to {max(self.events)}; "
            f"faults per seed: {sum(self.faults.values()) / seeds:.1f} ({faults}); {counts}"
        )


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulation: how a seed's world and nemesis are made, and the bugs that can be put in.

    `make` draws everything from the seed; `observed` is in force while a seed runs.
    """

    module: str
    make: Callable[[str, Choice, bool], tuple[BaseWorld, BaseNemesis]]
    mutations: Mapping[str, Callable[[], Callable[[], None]]]
    observed: Callable[[BaseWorld], AbstractContextManager[object]]

    def run_seed(self, seed: str, choice: Choice = FREE, *, print_trace: bool = False) -> Outcome:
        """Run one seed to its end or first violation."""
        undo = self.mutations[choice.mutation]() if choice.mutation else None
        try:
            return self._run_seed(seed, choice, print_trace)
        finally:
            if undo is not None:
                undo()

    def _run_seed(self, seed: str, choice: Choice, print_trace: bool) -> Outcome:
        world, nemesis = self.make(seed, choice, print_trace)
        world.on_controller_death = nemesis.controller_died
        failure = None
        try:
            with self.observed(world):
                world.run(nemesis)
        except (Violation, UnhandledFailure) as error:
            failure = f"{type(error).__name__} {error}"
        return Outcome(
            seed=seed,
            failure=failure,
            event_count=world.event_count,
            fault_count=sum(world.faults.values()),
            faults=world.faults,
            counts=world.counts,
            digest=world.digest(),
            virtual_s=world.loop.time(),
            history=list(world.loop.history),
        )

    def replay_command(self, seed: str, choice: Choice = FREE) -> str:
        """One line that runs a seed again, with its trace."""
        return f"python -m {self.module} --seed {seed}{choice.options()}"

    def describe_failure(self, outcome: Outcome, choice: Choice = FREE) -> str:
        """What a person needs of a failed seed."""
        tail = "\n".join(outcome.history[-40:])
        command = self.replay_command(outcome.seed, choice)
        return f"{tail}\n\nseed {outcome.seed}: {outcome.failure}\nreplay: {command}"

    def run_seeds(
        self,
        first_seed: int,
        choice: Choice = FREE,
        *,
        seeds: int | None = None,
        seconds: float | None = None,
        workers: int = 1,
        on_outcome: Callable[[Outcome], None] = lambda _outcome: None,
    ) -> tuple[Statistics, Outcome | None]:
        """Run seeds until there are enough, the time is over, or one fails."""
        total = Statistics()
        numbers = range(first_seed, sys.maxsize if seeds is None else first_seed + seeds)
        for outcome in self._outcomes(workers, numbers, choice):
            total.add(outcome)
            on_outcome(outcome)
            if outcome.failure is not None:
                return total, outcome
            if seconds is not None and time.monotonic() - total.began >= seconds:
                break
        return total, None

    def _outcomes(self, workers: int, numbers: Iterable[int], choice: Choice) -> Iterator[Outcome]:
        """In the order of the seeds; several workers may have begun a few more than asked for."""
        if workers == 1:
            for number in numbers:
                yield self.run_seed(str(number), choice)
            return
        remaining = iter(numbers)
        with ProcessPoolExecutor(workers, initializer=silence) as pool:
            running: deque[Future[Outcome]] = deque()
            try:
                while True:
                    while len(running) < 2 * workers and (number := next(remaining, -1)) >= 0:
                        running.append(pool.submit(self.run_seed, str(number), choice))
                    if not running:
                        return
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()

    def main(self, arguments: list[str] | None = None) -> int:
        """The command line; 1 when a seed failed. As that of the quorum's simulation."""
        options = self._parser().parse_args(arguments)
        silence()
        if options.logs:
            _print_logs()

        def show(outcome: Outcome) -> None:
            if not options.quiet:
                print(
                    f"seed {outcome.seed}: {outcome.event_count} events, "
                    f"{outcome.fault_count} faults, {outcome.virtual_s:.0f} virtual s, "
                    f"{outcome.digest}",
                    flush=True,
                )

        faults = tuple(options.faults.split(",")) if options.faults else ()
        choice = Choice(options.controllers, faults, options.mutation)
        failed: Outcome | None = None
        if options.seed is not None:
            outcome = self.run_seed(options.seed, choice, print_trace=not options.quiet)
            show(outcome)
            failed = outcome if outcome.failure is not None else None
        else:
            first, count = _range_of(options)
            total, failed = self.run_seeds(
                first,
                choice,
                seeds=count,
                seconds=None if options.minutes is None else options.minutes * 60,
                workers=options.workers,
                on_outcome=show,
            )
            print(f"from seed {first}: {total}")
        if failed is not None:
            print(self.describe_failure(failed, choice))
            return 1
        return 0

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
        parser.add_argument(
            "--mutation", default="", choices=["", *self.mutations], help="a bug put in"
        )
        parser.add_argument("--workers", type=int, default=1, help="processes")
        parser.add_argument("--quiet", action="store_true", help="print only the sums")
        parser.add_argument(
            "--logs", action="store_true", help="with --seed: what the nodes log, in the trace"
        )
        return parser


def silence() -> None:
    """Simulated nodes log what they would in production: nobody reads it here."""
    logging.getLogger("moldau").setLevel(logging.CRITICAL + 1)


class _TraceHandler(logging.Handler):
    """Prints what a simulated node logs, with the virtual time and the process."""

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if process is not None:
            now_ms = process.loop.time() * 1000
            print(f"{now_ms:12.3f}   [{process.name}] {record.name}: {record.getMessage()}")


def _print_logs() -> None:
    logger = logging.getLogger("moldau")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_TraceHandler())


def _range_of(options: argparse.Namespace) -> tuple[int, int | None]:
    """The first seed and how many; None for as many as there is time."""
    if options.seeds is not None:
        first, _, last = options.seeds.partition("-")
        return int(first), int(last or first) - int(first) + 1
    first = options.first_seed
    if options.minutes is not None:
        return (Random().randrange(10**9) if first is None else first), None
    return (1 if first is None else first), 20
