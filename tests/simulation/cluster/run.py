"""Runs seeds of the cluster simulation: `python -m tests.simulation.cluster.run --help`.

Owns: the command line, statistics, the command that replays a failure. Must not: choose what a seed
does (World and Nemesis do).
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.simulation.cluster.mutations import MUTATIONS
from tests.simulation.cluster.nemesis import Nemesis
from tests.simulation.cluster.virtual_loop import UnhandledFailure
from tests.simulation.cluster.world import World
from tests.simulation.scheduler import Violation

MIN_MEDIAN_EVENTS = 2_000


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


def run_seed(seed: str, *, controllers: int | None = None, print_trace: bool = False) -> Outcome:
    """Run one seed to its end or first violation."""
    world = World(seed, controllers=controllers, print_trace=print_trace)
    nemesis = Nemesis(world, Random(f"nemesis {seed}"))
    world.on_controller_death = nemesis.controller_died
    failure = None
    try:
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


def replay_command(seed: str, mutation: str | None = None, controllers: int | None = None) -> str:
    """One line that runs a seed again, with its trace."""
    extra = f" --mutation {mutation}" if mutation else ""
    extra += f" --controllers {controllers}" if controllers is not None else ""
    return f"python -m tests.simulation.cluster.run --seed {seed}{extra}"


def describe_failure(
    outcome: Outcome, mutation: str | None = None, controllers: int | None = None
) -> str:
    """What a person needs of a failed seed."""
    tail = "\n".join(outcome.history[-40:])
    return f"{tail}\n\nseed {outcome.seed}: {outcome.failure}\nreplay: " + replay_command(
        outcome.seed, mutation, controllers
    )


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


def run_seeds(
    first_seed: int,
    *,
    seeds: int | None = None,
    seconds: float | None = None,
    controllers: int | None = None,
    mutation: str = "",
    workers: int = 1,
    on_outcome: Callable[[Outcome], None] = lambda _outcome: None,
) -> tuple[Statistics, Outcome | None]:
    """Run seeds until there are enough, the time is over, or one fails."""
    total = Statistics()
    numbers = range(first_seed, sys.maxsize if seeds is None else first_seed + seeds)
    outcomes = _one_by_one if workers == 1 else partial(_by_workers, workers)
    for outcome in outcomes(numbers, controllers, mutation):
        total.add(outcome)
        on_outcome(outcome)
        if outcome.failure is not None:
            return total, outcome
        if seconds is not None and time.monotonic() - total.began >= seconds:
            break
    return total, None


def _one_by_one(
    numbers: Iterable[int], controllers: int | None, mutation: str
) -> Iterator[Outcome]:
    for number in numbers:
        yield _run_mutated(str(number), controllers, mutation)


def _by_workers(
    workers: int, numbers: Iterable[int], controllers: int | None, mutation: str
) -> Iterator[Outcome]:
    """In the order of the seeds; a few more than are asked for may have been begun."""
    remaining = iter(numbers)
    with ProcessPoolExecutor(workers) as pool:
        running: deque[Future[Outcome]] = deque()
        try:
            while True:
                while len(running) < 2 * workers and (number := next(remaining, -1)) >= 0:
                    running.append(pool.submit(_run_mutated, str(number), controllers, mutation))
                if not running:
                    return
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


def _run_mutated(seed: str, controllers: int | None, mutation: str) -> Outcome:
    logging.getLogger("moldau").setLevel(logging.CRITICAL + 1)
    undo = MUTATIONS[mutation]() if mutation else None
    try:
        return run_seed(seed, controllers=controllers)
    finally:
        if undo is not None:
            undo()


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 when a seed failed. The options are those of the quorum's simulation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", help="replay this one seed, with its trace")
    parser.add_argument("--seeds", help="a range of seeds, a-b")
    parser.add_argument("--minutes", type=float, help="as many seeds as fit")
    parser.add_argument("--first-seed", type=int, help="where they begin (random for --minutes)")
    parser.add_argument("--controllers", type=int, help="so many, whatever the seed says")
    parser.add_argument("--mutation", default="", choices=["", *MUTATIONS], help="a bug put in")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--quiet", action="store_true", help="print only the sums")
    options = parser.parse_args(arguments)
    logging.getLogger("moldau").setLevel(logging.CRITICAL + 1)

    def show(outcome: Outcome) -> None:
        if not options.quiet:
            print(
                f"seed {outcome.seed}: {outcome.event_count} events, "
                f"{outcome.fault_count} faults, {outcome.virtual_s:.0f} virtual s, "
                f"{outcome.digest}",
                flush=True,
            )

    failed: Outcome | None = None
    if options.seed is not None:
        undo = MUTATIONS[options.mutation]() if options.mutation else None
        outcome = run_seed(
            options.seed, controllers=options.controllers, print_trace=not options.quiet
        )
        if undo is not None:
            undo()
        show(outcome)
        failed = outcome if outcome.failure is not None else None
    else:
        first, count = _range_of(options)
        total, failed = run_seeds(
            first,
            seeds=count,
            seconds=None if options.minutes is None else options.minutes * 60,
            controllers=options.controllers,
            mutation=options.mutation,
            workers=options.workers,
            on_outcome=show,
        )
        print(f"from seed {first}: {total}")
    if failed is not None:
        print(describe_failure(failed, options.mutation, options.controllers))
        return 1
    return 0


def _range_of(options: argparse.Namespace) -> tuple[int, int | None]:
    """The first seed and how many; None for as many as there is time."""
    if options.seeds is not None:
        first, _, last = options.seeds.partition("-")
        return int(first), int(last or first) - int(first) + 1
    first = options.first_seed
    if options.minutes is not None:
        return (Random().randrange(10**9) if first is None else first), None
    return (1 if first is None else first), 20


if __name__ == "__main__":
    sys.exit(main())
