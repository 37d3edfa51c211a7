"""The process of the `moldau` command, also as `python -m moldau`."""

import atexit
import gc
import signal


def main() -> None:
    # Until the command can say so itself, Ctrl-C ends the process without a word.
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from moldau.runtime.garbage_collector import GC_THRESHOLDS

    # An eighth of what a short command takes: collections while its modules are imported, and the
    # one at the end of the process.
    gc.set_threshold(*GC_THRESHOLDS)
    atexit.register(gc.freeze)
    from moldau.cli.main import main as run

    signal.signal(signal.SIGINT, on_interrupt)
    run()


if __name__ == "__main__":
    main()
