"""A client that floods a coordinator with commits: `python -m benchmarks.flooder JSON`.

One connection, one small commit sent again and again, as many in flight as the socket takes. Prints
a line when the first answers have come, then goes on until it is killed.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from dataclasses import dataclass
from typing import Final

from benchmarks.wire import commit_frame

FRAMES_AT_ONCE: Final = 64
FIRST_ANSWERS_BYTES: Final = 4_096
RECEIVE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class FloodOrder:
    """Whom to flood, with commits of which group and topic."""

    host: str
    port: int
    group_id: str
    topic: str


def flood(order: FloodOrder) -> None:
    """Never ends."""
    frames = memoryview(commit_frame(order.group_id, order.topic) * FRAMES_AT_ONCE)
    flooding = socket.create_connection((order.host, order.port))
    flooding.setblocking(False)
    left = frames
    received_bytes = 0
    while True:
        readable, writable, _ = select.select([flooding], [flooding], [])
        if readable:
            received = len(flooding.recv(RECEIVE_BYTES))
            if not received:
                raise ConnectionError("the broker has closed the connection")
            if received_bytes < FIRST_ANSWERS_BYTES <= received_bytes + received:
                print("flooding", flush=True)
            received_bytes += received
        if writable:
            left = left[flooding.send(left) :] or frames


if __name__ == "__main__":
    flood(FloodOrder(**json.loads(sys.argv[1])))
