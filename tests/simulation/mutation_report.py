"""How many seeds each mutation takes to be caught: `python -m tests.simulation.mutation_report`.

Owns: the table for docs/testing.md. Must not: decide what is caught (the checks do). Invariant: the
same bases give the same table.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter

from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import run_seed

BASE_DISTANCE = 10_000
MOST_SEEDS = 500


def seeds_to_detection(name: str, base: int) -> tuple[int, str]:
    """How many seeds from `base` on, and what was violated; MOST_SEEDS + 1 when nothing was."""
    for number in range(MOST_SEEDS):
        result = run_seed(base + number, mutation=name)
        if result.violation:
            return number + 1, result.kind
    return MOST_SEEDS + 1, "not caught"


def main() -> None:
    """Prints a row of the table for each mutation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bases", type=int, default=5)
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    for name in arguments.names or MUTATIONS:
        found = [
            seeds_to_detection(name, BASE_DISTANCE * (each + 1)) for each in range(arguments.bases)
        ]
        numbers = [number for number, _ in found]
        kinds = Counter(kind for _, kind in found)
        print(
            f"| `{name}` | {MUTATIONS[name].breaks} | {statistics.median(numbers):g} |"
            f" {max(numbers)} | {', '.join(kind for kind, _ in kinds.most_common())} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
