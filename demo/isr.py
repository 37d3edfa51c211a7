"""`make demo-isr`: what an in-sync set does for a partition with three replicas, as a timeline.

Three brokers and three controllers as real processes. First only the way from the leader to one
follower is cut (replica.lag.time.max.ms=10000); then two of three replicas die; then the third, and
unclean election is off, and on. `--relay` cuts links through a relay even where network namespaces
could be had. Ends with status 1 when something does not follow within two minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from demo.isr_stage import stage
from demo.isr_story import CONFIG, Event, Story

console = Console(highlight=False)

CHAPTERS = {
    "created": "One way is cut",
    "two-out": "Two of three replicas are out",
    "waited": "Unclean election off",
    "allowed": "Unclean election on",
}


def main() -> int:
    """Tell the story; returns the exit status."""
    parser = argparse.ArgumentParser(description="The ISR experiment.")
    parser.add_argument("--relay", action="store_true", help="without network namespaces")
    options = parser.parse_args()
    told: set[str] = set()

    def show(event: Event) -> None:
        chapter = CHAPTERS.get(event.name)
        if chapter is not None and event.name not in told:
            console.print(f"\n[bold]{chapter}[/bold]")
        told.add(event.name)
        members = ",".join(map(str, event.isr)) or "-"
        console.print(
            f"{event.seconds:7.1f} s  ISR {members:<6} {event.text}", markup=False, soft_wrap=True
        )

    with (
        tempfile.TemporaryDirectory(prefix="moldau-isr-", ignore_cleanup_errors=True) as made,
        stage(Path(made), CONFIG, relayed=options.relay) as running,
    ):
        console.print(f"three controllers and three brokers serve; links: {running.links}")
        try:
            Story(running, show).tell()
        except TimeoutError as error:
            console.print(f"[red]{error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
