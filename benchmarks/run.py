"""Runs the benchmarks and prints their tables: `python -m benchmarks.run [NAME …] [--write]`.

Owns the list of benchmarks, the summary, and the generated part of docs/benchmarks.md. Invariant:
the document's figures are of one run of everything, with its machine and commit; what failed in it
is named there.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Final

from benchmarks.figures import Benchmark, Effort, Report, Table
from benchmarks.machine import ROOT, describe

#: Name on the command line → module with a `run`.
BENCHMARKS: Final = {
    "start-up": "bench_start_up",
    "fixture": "bench_fixture",
    "memory": "bench_memory",
    "produce-large": "bench_produce_large",
    "produce-small": "bench_produce_small",
    "fetch": "bench_fetch",
    "clients": "bench_clients",
    "record-codec": "bench_record_codec",
    "failover": "bench_failover",
    "metadata": "bench_metadata",
    "replication": "bench_replication",
    "produce-latency": "bench_produce_latency",
    "leader-killed": "bench_leader_killed",
    "idle-partitions": "bench_idle_partitions",
    "transactions": "bench_transactions",
    "groups": "bench_groups",
    "floods": "bench_floods",
    "compaction": "bench_compaction",
    "client": "bench_client",
    "visibility": "bench_visibility",
    "request-costs": "bench_request_costs",
    "neighbours": "bench_neighbours",
    "security": "bench_security",
    "greedy": "bench_greedy",
}
#: Run only when it is named: it needs Java, and starts a Spark.
ON_DEMAND: Final = {"spark": "bench_spark"}
DOCUMENT: Final = ROOT / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- figures: written by `python -m benchmarks.run --write` -->"
END: Final = "<!-- end of figures -->"


def load(name: str) -> Benchmark:
    """The `run` of a benchmark."""
    module = (BENCHMARKS | ON_DEMAND)[name]
    found: Benchmark = importlib.import_module(f"benchmarks.{module}").run
    return found


def main() -> int:
    """Parse, run, print, write; the exit status says nothing about the figures, only whether all
    benchmarks came to an end.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS | ON_DEMAND))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on amounts of data")
    parser.add_argument("--no-kafka", action="store_true", help="leave Apache Kafka out")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    names = options.names or list(BENCHMARKS)
    unknown = sorted(set(names) - set(BENCHMARKS | ON_DEMAND))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    if options.write and options.names:
        parser.error("--write is for a run of everything")
    if sys.platform != "linux":
        parser.error("the benchmarks read /proc: Linux only")
    effort = Effort(options.rounds, options.scale, not options.no_kafka)
    # An installed package has its bytecode: without it, starts would measure Python's compiler.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    facts = describe()
    begin = time.monotonic()
    reports: list[Report] = []
    failed: list[str] = []
    for name in names:
        try:
            report = load(name)(effort)
        except (OSError, RuntimeError, AssertionError, ValueError, KeyError):
            # The others took half an hour: they are not thrown away for it.
            traceback.print_exc()
            failed.append(name)
            continue
        reports.append(report)
        print(report.markdown(), flush=True)
    facts.append(("took", f"{(time.monotonic() - begin) / 60:.1f} minutes"))
    facts.append(("command", " ".join(["python -m benchmarks.run", *sys.argv[1:]])))
    if failed:
        facts.append(("FAILED, without figures", ", ".join(failed)))
    text = summary(reports, facts)
    print(text)
    if options.write:
        write(DOCUMENT, text + "\n" + "\n".join(report.markdown() for report in reports))
    return 1 if failed else 0


def summary(reports: list[Report], facts: list[tuple[str, str]]) -> str:
    """Machine and targets."""
    machine = Table(("what", "value"))
    for what, value in facts:
        machine.add(what, value)
    targets = Table(("asked for", "minimum / median / maximum", "met by the median"))
    for report in reports:
        for target in report.targets:
            targets.add(*target.row())
    return "\n".join(
        ["## The last run", "", machine.markdown(), "", "### Targets", "", targets.markdown(), ""]
    )


def write(document: Path, figures: str) -> None:
    """Replace the generated part of the document."""
    text = document.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{document} has no generated part"
    document.write_text(f"{before}{BEGIN}\n\n{figures}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
