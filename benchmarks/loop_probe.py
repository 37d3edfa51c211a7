"""One node whose loops tell how long each of their steps takes: `python -m benchmarks.loop_probe`.

Owns: the longest step of the data loop and of the quorum's since the last question, in processor
time of the loop's thread, so that what else runs on the machine does not count; and where a long
step was, by samples of its stack. Must not: change the node, but for running on asyncio's own loop,
whose steps can be timed. The first argument is the port that answers `PORT` with a line of JSON;
the others are those of `moldau.broker`.
"""

from __future__ import annotations

import asyncio
import json
import socketserver
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Any, Final

QUORUM_THREAD: Final = "moldau-quorum"
DATA: Final = "data"
QUORUM: Final = "quorum"

SAMPLED_S: Final = 0.02
"""From this time on the stack of a step is looked at."""

SAMPLE_INTERVAL_S: Final = 0.005
STACK_DEPTH: Final = 4
STACKS_TOLD: Final = 3


class Steps:
    """The longest step of each loop since it was last asked for, and what ran."""

    def __init__(self) -> None:
        self._longest: dict[str, tuple[float, str]] = {}
        self._begun: dict[int, float] = {}
        """By thread, while a step runs in it."""
        self._stacks: Counter[str] = Counter()

    def install(self) -> None:
        """Time every step of every loop of asyncio from now on."""
        run = asyncio.events.Handle._run

        def timed(handle: Any) -> None:
            thread = threading.get_ident()
            self._begun[thread] = time.monotonic()
            begun = time.thread_time()
            run(handle)
            elapsed_ms = (time.thread_time() - begun) * 1000
            del self._begun[thread]
            self._ended(elapsed_ms, handle)

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]
        threading.Thread(target=self._sample, daemon=True).start()

    def _ended(self, elapsed_ms: float, handle: Any) -> None:
        name = self._loop_name()
        if elapsed_ms > self._longest.get(name, (0.0, ""))[0]:
            stacks = " | ".join(f"{n}x {s}" for s, n in self._stacks.most_common(STACKS_TOLD))
            self._longest[name] = (elapsed_ms, stacks or repr(handle)[:200])
        if self._stacks:
            self._stacks = Counter()

    def _sample(self) -> None:
        while True:
            time.sleep(SAMPLE_INTERVAL_S)
            latest = time.monotonic() - SAMPLED_S
            for thread, begun in list(self._begun.items()):
                frame = sys._current_frames().get(thread) if begun < latest else None
                if frame is not None:
                    self._stacks[_stack(frame)] += 1

    def take(self) -> dict[str, tuple[float, str]]:
        """What was longest; counting begins again."""
        longest, self._longest = self._longest, {}
        return longest

    @staticmethod
    def _loop_name() -> str:
        return QUORUM if threading.current_thread().name == QUORUM_THREAD else DATA


def _stack(frame: FrameType | None) -> str:
    """The innermost calls, the last one first."""
    calls = []
    while frame is not None and len(calls) < STACK_DEPTH:
        code = frame.f_code
        calls.append(f"{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(calls)


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
