"""The process of the `moldau` command, also as `python -m moldau`."""

import atexit
import gc

from moldau.runtime.garbage_collector import GC_THRESHOLDS


def main() -> None:
    # An eighth of what a short command takes: collections while its modules are imported, and the
    # one at the end of the process.
    gc.set_threshold(*GC_THRESHOLDS)
    atexit.register(gc.freeze)
    from moldau.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
