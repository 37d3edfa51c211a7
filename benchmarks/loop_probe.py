"""One node whose loops tell how long each of their steps takes: `python -m benchmarks.loop_probe`.

Owns: the longest step of the data loop and of the quorum's since the last question, in processor
time of the loop's thread, so that what else runs on the machine does not count. Must not: change
the node, but for running on asyncio's own loop, whose steps can be timed. The first argument is the
port that answers `PORT` with a line of JSON; the others are those of `moldau.broker`.
"""

from __future__ import annotations

import asyncio
import json
import socketserver
import sys
import threading
import time
from typing import Any, Final

QUORUM_THREAD: Final = "moldau-quorum"
DATA: Final = "data"
QUORUM: Final = "quorum"


class Steps:
    """The longest step of each loop since it was last asked for, and what ran."""

    def __init__(self) -> None:
        self._longest: dict[str, tuple[float, str]] = {}

    def install(self) -> None:
        """Time every step of every loop of asyncio from now on."""
        run = asyncio.events.Handle._run

        def timed(handle: Any) -> None:
            begun = time.thread_time()
            run(handle)
            elapsed_ms = (time.thread_time() - begun) * 1000
            name = self._loop_name()
            if elapsed_ms > self._longest.get(name, (0.0, ""))[0]:
                self._longest[name] = (elapsed_ms, repr(handle)[:200])

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]

    def take(self) -> dict[str, tuple[float, str]]:
        """What was longest; counting begins again."""
        longest, self._longest = self._longest, {}
        return longest

    @staticmethod
    def _loop_name() -> str:
        return QUORUM if threading.current_thread().name == QUORUM_THREAD else DATA


def main() -> int:
    """Run the node to its end."""
    steps = Steps()
    steps.install()

    class Question(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(json.dumps(steps.take()).encode() + b"\n")

    server = socketserver.TCPServer(("127.0.0.1", int(sys.argv[1])), Question)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    from moldau.broker.__main__ import main as run_node

    return run_node(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
