"""Stands in for `python -m moldau.broker`: does as its configuration file says, then ends.

The file has one word per start (the last one stays): `serve` announces and waits for SIGTERM,
`stuck` does too but cannot be stopped that way, `silent` never announces, `exit N` complains and
ends with that status. Every start adds a line to `starts` beside the file.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType


def main() -> None:
    """Run once."""
    config = Path(sys.argv[1])
    starts = config.with_name("starts")
    with starts.open("a") as file:
        file.write("started\n")
    script = config.read_text().splitlines()
    words = script[min(len(starts.read_text().splitlines()), len(script)) - 1].split()
    if words[0] == "exit":
        print("moldau: as the script says", file=sys.stderr, flush=True)
        sys.exit(int(words[1]))

    def end(number: int, frame: FrameType | None) -> None:
        with config.parent.parent.joinpath("stopped").open("a") as file:
            file.write(config.parent.name + "\n")
        sys.exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if words[0] == "stuck" else end)
    if words[0] != "silent":
        print("ready: h:1", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
