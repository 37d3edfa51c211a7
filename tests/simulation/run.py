"""Runs seeds of the quorum's simulation: `make sim`, or `python -m tests.simulation.run`.

Owns: the command line, the statistics, the worker processes. Must not: change what a seed does.
Invariant: every violation is printed with the one command that replays it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count

from tests.simulation.mutations import MUTATIONS
from tests.simulation.quorum import QuorumSimulation
from tests.simulation.scheduler import Violation

PROGRESS_SECONDS = 60.0
SEEDS_AHEAD = 64
"""How many seeds wait in the workers' queue."""
LEAST_EVENTS = 2_000
"""The median run has at least so many events, so that nobody shrinks runs to buy seeds."""


@dataclass(slots=True)
class SeedResult:
    """What a seed came to."""

    seed: int
    events: int
    faults: Counter[str]
    counts: Counter[str]
    digest: str
    violation: str = ""
    kind: str = ""
    where: str = ""


@dataclass(slots=True)
class Summary:
    """What many seeds came to."""

    events: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[SeedResult] = field(default_factory=list)
    first_seed: int = -1
    last_seed: int = -1

    def add(self, result: SeedResult) -> None:
        """One more."""
        self.events.append(result.events)
        self.faults += result.faults
        self.counts += result.counts
        self.first_seed = min(self.first_seed, result.seed) if self.first_seed >= 0 else result.seed
        self.last_seed = max(self.last_seed, result.seed)
        if result.violation:
            self.violations.append(result)

    def lines(self) -> Iterator[str]:
        """For people."""
        seeds = len(self.events)
        if not seeds:
            yield "no seed was run"
            return
        yield (
            f"{seeds} seeds ({self.first_seed}-{self.last_seed}), {sum(self.events)} events,"
            f" median {statistics.median(self.events):.0f} per seed,"
            f" {sum(self.faults.values()) / seeds:.1f} faults per seed"
        )
        each = (f"{kind} {number / seeds:.2f}" for kind, number in sorted(self.faults.items()))
        yield "faults per seed: " + ", ".join(each)
        each = (f"{kind} {number / seeds:.2f}" for kind, number in sorted(self.counts.items()))
        yield "per seed: " + ", ".join(each)
        kinds = Counter(result.kind for result in self.violations)
        yield f"violations: {len(self.violations)} {dict(sorted(kinds.items()))}"


def run_seed(seed: int, *, print_trace: bool = False, mutation: str = "") -> SeedResult:
    """Runs one seed, with a mutation of the core when one is named."""
    with MUTATIONS[mutation].applied() if mutation else nullcontext():
        world = QuorumSimulation(seed, print_trace=print_trace)
        violation = kind = where = ""
        try:
            world.run()
        except Violation as found:
            violation, kind = str(found), found.kind
            where = "".join(traceback.format_exception(found)) if print_trace else ""
            world.scheduler.note(f"VIOLATION {violation}")
        scheduler = world.scheduler
        return SeedResult(
            seed,
            scheduler.events,
            scheduler.faults,
            scheduler.counts,
            scheduler.digest(),
            violation,
            kind,
            where,
        )


def replay_command(seed: int, mutation: str = "") -> str:
    """What replays a seed with its trace."""
    return f"make sim SEED={seed}" + (f" MUTATION={mutation}" if mutation else "")


def run_seeds(
    seeds: Iterable[int], *, mutation: str = "", workers: int = 1, seconds: float | None = None
) -> Iterator[SeedResult]:
    """Results in the order of the seeds, until the seeds or the seconds are over."""
    deadline = time.monotonic() + seconds if seconds is not None else float("inf")
    if workers <= 1:
        for seed in seeds:
            if time.monotonic() > deadline:
                return
            yield run_seed(seed, mutation=mutation)
        return
    with ProcessPoolExecutor(workers) as pool:
        waiting = []
        for seed in seeds:
            waiting.append(pool.submit(run_seed, seed, mutation=mutation))
            if len(waiting) >= SEEDS_AHEAD:
                yield waiting.pop(0).result()
            if time.monotonic() > deadline:
                break
        for each in waiting:
            yield each.result()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed with its trace (SEED=n)")
    parser.add_argument("--seeds", help="a range of seeds, a-b (SEEDS=a-b)")
    parser.add_argument("--minutes", type=float, help="as many seeds as fit (MINUTES=m)")
    parser.add_argument("--first-seed", type=int, help="where MINUTES begins (random otherwise)")
    parser.add_argument("--mutation", default="", choices=["", *MUTATIONS], help="a broken core")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    return parser.parse_args()


def _replay(seed: int, mutation: str) -> int:
    result = run_seed(seed, print_trace=True, mutation=mutation)
    print(f"seed {seed}: {result.events} events, digest {result.digest}")
    print("faults:", dict(sorted(result.faults.items())))
    print("counts:", dict(sorted(result.counts.items())))
    if result.violation:
        print(result.where)
        print("VIOLATION", result.violation)
    return 1 if result.violation else 0


def main() -> int:
    """The exit code: 1 when something was violated."""
    arguments = _arguments()
    if arguments.seed is not None:
        return _replay(arguments.seed, arguments.mutation)
    if arguments.seeds:
        first, _, last = arguments.seeds.partition("-")
        seeds: Iterable[int] = range(int(first), int(last or first) + 1)
        seconds = None
    else:
        first_seed = arguments.first_seed
        if first_seed is None:
            first_seed = int(time.time()) * 1_000
        seeds, seconds = count(first_seed), (arguments.minutes or 1.0) * 60
    summary = Summary()
    shown = time.monotonic()
    results = run_seeds(
        seeds, mutation=arguments.mutation, workers=arguments.workers, seconds=seconds
    )
    for result in results:
        summary.add(result)
        if result.violation:
            print(f"VIOLATION seed {result.seed}: {result.violation}")
            print(f"  {replay_command(result.seed, arguments.mutation)}", flush=True)
        if time.monotonic() - shown > PROGRESS_SECONDS:
            shown = time.monotonic()
            print(next(summary.lines()), flush=True)
    for line in summary.lines():
        print(line)
    return 1 if summary.violations else 0


if __name__ == "__main__":
    sys.exit(main())
