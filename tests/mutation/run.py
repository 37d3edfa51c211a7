"""The mutation score: small changes of the product, one at a time, and whether a fast test fails.

`make mutants`, or `python -m tests.mutation.run`. Owns: the command line, the report, the file in
which results are kept. Must not: change what a sample is. Invariant: the exit code is 0 only when
every change that survived is explained in `explained.txt`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.mutation.sampling import AREAS, ROOT, area_mutants, mixed, sample, seed_of_commit
from tests.mutation.trials import HUNG, KILLED, SURVIVED, UNREACHED, Outcome, Trials

EXPLAINED = Path(__file__).with_name("explained.txt")
CLUSTER = {"MOLDAU_TEST_CLUSTER": "fake"}
"""Real tests that run on several clusters take the one that begins at once: every change has its
own."""


def explanations(text: str) -> dict[str, str]:
    """The explanations of `explained.txt`: a change's key on a line, its explanation on indented
    lines below.
    """
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(" "):
            found[key] = f"{found[key]} {line.strip()}".strip()
        else:
            key = line.strip()
            found[key] = ""
    return found


def table(outcomes: Iterable[Outcome], explained: dict[str, str]) -> Iterator[str]:
    """The figures for people: one row per area, and all of them together."""
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        result = KILLED if outcome.result == HUNG else outcome.result
        for row in (outcome.area, "all"):
            counts[row, "all"] += 1
            counts[row, result] += 1
            if result != KILLED and outcome.key in explained:
                counts[row, "explained"] += 1
    yield "| area | changes | killed | survived | of these no fast test reaches | explained |"
    yield "|---|---|---|---|---|---|"
    for area in (*AREAS, "all"):
        if every := counts[area, "all"]:
            killed = counts[area, KILLED]
            yield (
                f"| {area} | {every} | {killed} ({killed / every:.1%}) | {every - killed}"
                f" | {counts[area, UNREACHED]} | {counts[area, 'explained']} |"
            )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="of the sample (SEED=n); else it is taken from the commit's hash"
    )
    parser.add_argument(
        "--count", type=int, default=300, help="about how many of each side (COUNT=n)"
    )
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS), help="(AREAS=…)")
    parser.add_argument("--workers", type=int, default=1, help="processes (WORKERS=n)")
    parser.add_argument("--only", default="", help="changes whose key has this text")
    parser.add_argument("--survivors", type=Path, help="only those that survived in this file")
    parser.add_argument("--tests", nargs="+", default=(), help="instead of the areas'")
    parser.add_argument(
        "--real", action="store_true", help="real tests too, also of areas that name none"
    )
    parser.add_argument("--results", type=Path, help="a file to keep results in, and to go on from")
    arguments = parser.parse_args()
    if arguments.seed is None:
        try:
            arguments.seed = commit_seed(ROOT)
        except (OSError, subprocess.CalledProcessError) as error:
            parser.error(f"there is no commit to take the seed from ({error}): SEED=n")
    return arguments


def commit_seed(root: Path) -> int:
    """The seed of the commit that is checked out. Raises: OSError, CalledProcessError."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return seed_of_commit(done.stdout)


def _kept(path: Path | None) -> dict[str, Outcome]:
    if path is None or not path.exists():
        return {}
    outcomes = (Outcome(**json.loads(line)) for line in path.read_text().splitlines())
    return {outcome.key: outcome for outcome in outcomes}


def _survived(path: Path) -> set[str]:
    return {key for key, outcome in _kept(path).items() if outcome.result in (SURVIVED, UNREACHED)}


def main() -> int:
    """The exit code."""
    arguments = _arguments()
    print(f"SEED={arguments.seed}", file=sys.stderr, flush=True)
    chosen = sample(arguments.count, arguments.seed, tuple(arguments.areas))
    changes = mixed(chosen, arguments.seed)
    changes = [(area, each) for area, each in changes if arguments.only in each.key]
    if arguments.survivors is not None:
        survived = _survived(arguments.survivors)
        changes = [(area, each) for area, each in changes if each.key in survived]
    outcomes = _kept(arguments.results)
    wanted = {mutant.key for _area, mutant in changes}
    outcomes = {key: outcome for key, outcome in outcomes.items() if key in wanted}

    def report(outcome: Outcome) -> None:
        outcomes[outcome.key] = outcome
        if arguments.results is not None:
            with arguments.results.open("a") as kept:
                kept.write(json.dumps(asdict(outcome)) + "\n")
        note = f"{len(outcomes)}/{len(wanted)} {outcome.result} in {outcome.seconds} s"
        print(f"{note}  {outcome.key}  {outcome.by}", file=sys.stderr, flush=True)

    left = [(area, mutant) for area, mutant in changes if mutant.key not in outcomes]
    if left:
        options = ["-q", "-s", "-p", "no:cacheprovider", "--tb=no"]
        options += ["-o", "tmp_path_retention_policy=none"]
        os.environ.update(CLUSTER)
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            tests = tuple(arguments.tests)
            real, workers = arguments.real, arguments.workers
            trials = Trials(left, tests, real, workers, Path(folder), report)
            if not tests:
                areas = dict.fromkeys(area for area, _mutant in left)
                tests = tuple(
                    dict.fromkeys(each for area in areas for each in AREAS[area].all_tests)
                )
            code = pytest.main([*options, *tests], plugins=[trials])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return int(code)
        for test in trials.failing:
            print(f"fails on the code as it is, and judges nothing: {test}", file=sys.stderr)
    return _conclude(outcomes)


def _conclude(outcomes: dict[str, Outcome]) -> int:
    explained = explanations(EXPLAINED.read_text())
    print("\n".join(table(outcomes.values(), explained)))
    unexplained = [
        each
        for each in outcomes.values()
        if each.result in (SURVIVED, UNREACHED) and each.key not in explained
    ]
    for outcome in unexplained:
        print(f"{outcome.result}: {outcome.key}")
    for outcome in outcomes.values():
        if outcome.result in (KILLED, HUNG) and outcome.key in explained:
            print(f"explained, but killed by {outcome.by}: {outcome.key}")
    offered = {mutant.key for area in AREAS for mutant in area_mutants(area)}
    for key in sorted(explained.keys() - offered):
        print(f"explained, but the source no longer offers it: {key}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
