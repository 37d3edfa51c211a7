"""The command line of soaks: a seed, a span of time, which faults, and what is printed during a
run.

Owns: the options that soaks share, and what is printed to replay a run. Must not: know what a soak
does.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]
SECURE_HELP = "with certificates, users and ACLs, which change meanwhile"


def soak_parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """A command line with the seed."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--seed", type=int, default=None, help="replays the schedule of a run")
    return parser


def seed_of(options: argparse.Namespace) -> int:
    """The seed that is given, or a new one."""
    return secrets.randbits(32) if options.seed is None else int(options.seed)


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def add_fault_options(parser: argparse.ArgumentParser, faults: Collection[str]) -> None:
    """The options of a soak that breaks processes for a while."""
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--only", default="", metavar="FAULT,…", help=f"leave out all but: {', '.join(faults)}"
    )
    parser.add_argument("--keep", type=Path, help="leave the nodes' directories there")


def chosen_faults(
    parser: argparse.ArgumentParser, options: argparse.Namespace, faults: Collection[str]
) -> frozenset[str]:
    """What `--only` names; empty for all."""
    only = frozenset(options.only.split(",")) - {""}
    unknown = only - frozenset(faults)
    if unknown:
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    return only


@contextmanager
def fault_run(options: argparse.Namespace) -> Iterator[tuple[Path, int, Say]]:
    """The directory and the seed of a run, and what prints lines with the seconds since its begin.
    SIGTERM ends the run in order, so that no node is left behind.
    """
    seed = seed_of(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    begin = time.monotonic()

    def say_when(text: str) -> None:
        say(f"{time.monotonic() - begin:7.1f} s  {text}")

    say_when(f"seed {seed}: replay with --seed {seed} --minutes {options.minutes:g}")
    with tempfile.TemporaryDirectory(prefix="moldau-soak-", ignore_cleanup_errors=True) as made:
        yield options.keep or Path(made), seed, say_when
