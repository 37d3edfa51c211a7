"""Creates topics through the brokers while nodes die, and remembers what was promised.

Owns the thread and the two lists: acknowledged, and unsure (no answer, or an error that leaves it
open). Invariant: an acknowledged name was answered without an error by a broker.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from benchmarks.wire import CREATE_TOPICS_VERSION, Wire, create_topic_request
from moldau.protocol.errors import ErrorCode

ANSWER_TIMEOUT_S: Final = 10.0
PAUSE_S: Final = 0.02


class TopicLoad:
    """Use as a context: it creates topics, one after the other, until the end.

    Args:
        connect: a connection to a broker that the load picks by `choices`.
    """

    def __init__(
        self, connect: Callable[[int], Wire], broker_ids: list[int], dice: random.Random
    ) -> None:
        self.acknowledged: list[str] = []
        self.unsure: list[str] = []
        self._connect = connect
        self._broker_ids = broker_ids
        self._random = dice
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic-load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE_S):
            name = f"load-{number}"
            number += 1
            try:
                with self._connect(self._random.choice(self._broker_ids)) as wire:
                    wire.socket.settimeout(ANSWER_TIMEOUT_S)
                    request = create_topic_request(name, 1)
                    request.timeout_ms = int(ANSWER_TIMEOUT_S * 1000) // 2
                    answer = wire.ask(request, CREATE_TOPICS_VERSION).topics[0]
            except OSError:
                self.unsure.append(name)
                continue
            if answer.error_code == ErrorCode.NONE:
                self.acknowledged.append(name)
            else:
                self.unsure.append(name)
