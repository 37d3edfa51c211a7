"""A seed's trace does not depend on how Python hashes strings in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SEEDS = (1, 3, 4)
ROOT = Path(__file__).resolve().parents[2]


def _digest(hash_seed: str) -> str:
    code = (
        "from tests.simulation.run import run_seed\n"
        f"print(*(run_seed(seed).digest for seed in {SEEDS}))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return finished.stdout.strip()


def test_a_seed_is_the_same_run_under_every_hash_seed():
    digests = [_digest(hash_seed) for hash_seed in ("0", "1", "random")]
    assert len(set(digests[0].split())) == len(SEEDS)
    assert digests[0] == digests[1] == digests[2]


def test_a_violation_replays_from_the_command_line():
    command = [sys.executable, "-m", "tests.simulation.run"]
    broken = [*command, "--mutation", "vote-not-persisted"]
    found = subprocess.run(
        [*broken, "--seeds", "0-20"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert found.returncode == 1, found.stdout + found.stderr
    line = next(line for line in found.stdout.splitlines() if line.startswith("VIOLATION seed"))
    seed, _, violation = line.removeprefix("VIOLATION seed ").partition(": ")
    assert f"make sim SEED={seed} MUTATION=vote-not-persisted" in found.stdout
    replayed = subprocess.run(
        [*broken, "--seed", seed], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert replayed.returncode == 1
    assert replayed.stdout.splitlines()[-1] == f"VIOLATION {violation}"
