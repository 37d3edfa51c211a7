"""Tries the installed `moldau`: a node, a topic, records in and out, all by the command line.

    python tools/try_installation.py [--native]

Run it with the interpreter of the environment that moldau is installed in. Prints the seconds of
every step; status 1 and one line when a step does not do what it must.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Final

MOLDAU: Final = str(Path(sysconfig.get_path("scripts")) / "moldau")
RECORDS: Final = "UA1545 on time\nAA1141 late by 2 minutes\nB6725 cancelled\n"
TIMEOUT_S: Final = 60.0


class Failed(Exception):
    """A step went wrong."""


def run(environment: dict[str, str], *arguments: str, given: str = "") -> str:
    """One command to its end; its output. Raises: Failed."""
    began = time.monotonic()
    done = subprocess.run(
        [MOLDAU, *arguments],
        input=given,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"moldau {' '.join(arguments)}: status {done.returncode}: {done.stderr}")
    print(f"{time.monotonic() - began:6.2f} s  moldau {' '.join(arguments)}", flush=True)
    return done.stdout


def use(environment: dict[str, str], *, native: bool) -> None:
    """All steps. Raises: Failed."""
    said = run(environment, "--version")
    print(f"          {said.strip()}")
    if native and "(native record codec)" not in said:
        raise Failed(f"the record codec is not native: {said}")
    began = time.monotonic()
    node = subprocess.Popen(
        [MOLDAU, "dev", "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert node.stdout is not None
        ready = node.stdout.readline()
        if not ready.startswith("ready: "):
            raise Failed(f"moldau dev said {ready!r} and ended with {node.wait(TIMEOUT_S)}")
        print(f"{time.monotonic() - began:6.2f} s  moldau dev, until it is ready", flush=True)
        environment = {**environment, "MOLDAU_BOOTSTRAP_SERVER": ready.split()[1]}
        run(environment, "topics", "create", "flights")
        for codec in ("none", "lz4", "zstd"):
            codec_of = ("--property", f"compression.type={codec}")
            run(environment, "produce", "flights", *codec_of, given=RECORDS)
        found = run(environment, "consume", "flights", "--from-beginning", "--until-end")
        if sorted(found.splitlines()) != sorted((RECORDS * 3).splitlines()):
            raise Failed(f"consumed {found!r}")
        node.send_signal(signal.SIGINT)
        if node.wait(TIMEOUT_S) != 0:
            raise Failed(f"moldau dev ended with {node.returncode}")
    finally:
        node.kill()
        node.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--native", action="store_true", help="the record codec must be compiled")
    options = parser.parse_args()
    left_out = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "MOLDAU_BOOTSTRAP_SERVER"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)  # not the sources, wherever this is called
        try:
            use(environment, native=options.native)
        except (Failed, subprocess.TimeoutExpired) as problem:
            print(f"try: {problem}", file=sys.stderr)
            return 1
        finally:
            os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
