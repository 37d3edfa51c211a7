"""The command lines of docs/testing.md and CONTRIBUTING.md do what they say, on less."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.documents.commands import Command, commands_to_run
from tests.tidy.sources import ROOT

#: Long runs are cut: a simulation to seconds, a range of seeds to its first ones.
SHORTER = (
    (r"MINUTES=\d+", "MINUTES=0.03"),
    (r"SEEDS=0-999", "SEEDS=0-9"),
    (r"SEEDS=1-30", "SEEDS=1-4"),
)
DEADLINE_S = 280.0

pytestmark = pytest.mark.timeout(300)


def simulations() -> list[Command]:
    return [
        each
        for document in ("docs/testing.md", "CONTRIBUTING.md")
        for each in commands_to_run(document)
    ]


@pytest.mark.parametrize("command", simulations(), ids=lambda each: f"{each.document}:{each.line}")
def test_it_runs(command: Command, tmp_path: Path) -> None:
    text = command.text
    for pattern, shorter in SHORTER:
        text = re.sub(pattern, shorter, text)
    words = text.split()
    if words[0] == "python":
        words[0] = sys.executable
    if words == ["make", "sim"]:
        words.append("MINUTES=0.03")
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    finds = "BUG=" in text
    assert (done.returncode == 0) == (not finds), done.stdout[-2_000:] + done.stderr[-2_000:]
    assert not finds or "violat" in done.stdout.lower(), done.stdout[-2_000:]
