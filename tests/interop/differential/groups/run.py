"""The long comparison: `make differential-groups SEQUENCES=n SEED=n`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom
from typing import Final

from tests.interop.differential.clusters import both_clusters
from tests.interop.differential.differences import DifferenceList
from tests.interop.differential.groups.comparison import (
    GROUP_CONFIG,
    LIST,
    Comparison,
    Tally,
    prepare,
)
from tests.interop.differential.groups.generating import sequence
from tests.interop.java.tools import JavaTools, missing

PER_CLUSTER: Final = 10_000
"""Sequences until both clusters are begun again, so that neither holds all groups."""

PER_REPORT: Final = 1000
"""Sequences until the next line says how many were played, and what differed."""


def main() -> int:
    """0: all equal but for the list; 1: differences were found; 2: nothing to compare with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0, help="the number of the first sequence")
    parser.add_argument("--trace", action="store_true", help="only the first, with all answers")
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(reason)
        return 2
    seed = SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    tally = Tally(DifferenceList.load(LIST))
    began_s = time.monotonic()
    told_count = 0
    end = options.first + options.sequences
    for first in range(options.first, end, PER_CLUSTER):
        with tempfile.TemporaryDirectory(prefix="moldau-groups-") as directory:
            home = Path(directory)
            with (
                (home / "java.log").open("wb") as errors,
                JavaTools(errors) as java,
                both_clusters(java, home, GROUP_CONFIG) as pair,
            ):
                prepare(pair)
                comparison = Comparison(pair, tally)
                if options.trace:
                    asyncio.run(comparison.trace(sequence(seed, first)))
                    return 0
                last = min(end, first + PER_CLUSTER)
                for part in range(first, last, PER_REPORT):
                    numbers = range(part, min(last, part + PER_REPORT))
                    asyncio.run(comparison.run(sequence(seed, number) for number in numbers))
                    print(f"{tally}, {time.monotonic() - began_s:.0f} s", flush=True)
                    if tally.failure_count > told_count:
                        told_count = tally.failure_count
                        print(tally.report(), flush=True)
    print(tally.cut_report())
    return 1 if tally.failure_count else 0


if __name__ == "__main__":
    sys.exit(main())
