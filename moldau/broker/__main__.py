"""`python -m moldau.broker CONFIG`: one node in the foreground, without the command line's
libraries.

Owns the process's first and last line: stop signals and the exit status (0 stopped in an orderly
way, 1 failed, 2 wrong arguments or configuration). Must not load anything before the signals are
in hand: that takes longer than an impatient user.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from moldau.runtime.garbage_collector import collect_young_only
from moldau.runtime.stop_signals import StopSignals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is asked to stop; returns the exit status."""
    signals = StopSignals()
    signals.install()
    collect_young_only()
    try:
        from moldau.node.foreground import run_node

        return run_node(arguments, signals)
    finally:
        signals.ignore()


if __name__ == "__main__":
    sys.exit(main())
