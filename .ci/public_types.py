"""Checks that every type of the client's public face is known to its users' type checkers.

Owns: running pyright's `--verifytypes` on `moldau.client` and making short lines of its report.
Must not: need the network; `basedpyright` is pyright packaged with the interpreter it needs.
Invariant: 0 is returned only for a completeness of 100 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE = "moldau.client"
SHOWN_COUNT = 50


def main() -> int:
    """Print what is missing and the score."""
    if find_spec("basedpyright") is None:
        print("public types: LEFT OUT, basedpyright is not installed: make setup-all")
        return 0
    report = _report()
    summary = report["typeCompleteness"]
    problems = [
        f"{symbol['name']}: {diagnostic['message'].splitlines()[0]}"
        for symbol in summary["symbols"]
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        for diagnostic in symbol["diagnostics"]
        if diagnostic.get("severity", "error") == "error"
    ]
    for line in problems[:SHOWN_COUNT]:
        print(line)
    if len(problems) > SHOWN_COUNT:
        print(f"… and {len(problems) - SHOWN_COUNT} more")
    counts = summary["exportedSymbolCounts"]
    total = sum(counts.values())
    print(f"{MODULE}: {counts['withKnownType']} of {total} public symbols have a known type")
    complete = total > 0 and counts["withKnownType"] == total and not problems
    return 0 if complete else 1


def _report() -> dict:
    """Pyright's own report, of the sources beside this file whatever is installed."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    command += ["--verifytypes", MODULE, "--ignoreexternal", "--outputjson"]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        sys.exit(f"public types: pyright failed: {done.stderr.strip() or done.stdout.strip()}")


if __name__ == "__main__":
    sys.exit(main())
