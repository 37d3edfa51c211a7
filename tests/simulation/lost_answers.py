"""First answers of every kind of request that are served and never arrive.

Owns: which answers are lost, and how their connection ends, by dice of its own, so that seeds
without lost answers are the runs they were. Must not: change what is written.
Invariants: of each kind of request a process loses one answer, or one of each peer, until
`lose_first_answers`; requests arrive; after `end` nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple
from weakref import WeakKeyDictionary

from moldau.protocol.api_keys import ApiKey
from tests.simulation.cluster.base_world import BaseWorld
from tests.simulation.cluster.troubles import Troubles
from tests.virtual.transport import SimulatedTransport

SEEDS_SHARE = 0.2
SILENT = 0.25
"""The share of connections on which an answer is lost; all others break, when what they carried has
gone.
"""
SPARED_S = 4.0
"""For so long a process that has lost its first answers gets all others: it may get through."""
RESPONSE_PART = slice(4, 8)
"""Where the correlation id is in a frame that begins with its size."""
REQUEST_API, REQUEST_PART = slice(4, 6), slice(8, 12)


class Frames:
    """Finds the frames in what one end writes, however it is cut."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._missing_bytes = 0

    def heads(self, data: bytes, head_bytes: int) -> list[bytes]:
        """The first `head_bytes` of each frame of which the last of these are in `data`."""
        found, position = [], 0
        while position < len(data):
            if not self._missing_bytes:
                wanted = head_bytes - len(self._begun)
                self._begun += data[position : position + wanted]
                position += wanted
                if len(self._begun) == head_bytes:
                    found.append(bytes(self._begun))
                    self._missing_bytes = int.from_bytes(self._begun[:4]) + 4 - head_bytes
                    self._begun.clear()
            else:
                taken = min(self._missing_bytes, len(data) - position)
                self._missing_bytes -= taken
                position += taken
        return found


class _Asked(NamedTuple):
    """A connection: how its requests and its answers are cut, and the kinds of open requests."""

    requests: Frames
    answers: Frames
    kinds: dict[bytes, int]


class LostAnswers(Troubles):
    """The fault; one per world. In a run that has it, it works from the beginning."""

    pauses_ms = (1_500.0, 6_000.0)

    def __init__(self, world: BaseWorld) -> None:
        super().__init__(world, "lost answers", SEEDS_SHARE)
        self._is_of_each_peer = self.random.random() < 0.5
        self._may_lose_at = SPARED_S
        self._lost: set[tuple[str, str, int]] = set()
        self._asked: WeakKeyDictionary[SimulatedTransport, _Asked] = WeakKeyDictionary()
        world.fabric.on_write = self._written

    def acts(self) -> list[Callable[[], None]]:
        return [self.lose_first_answers]

    def keep_to(self, faults: Collection[str]) -> None:
        if faults:
            self.is_on = self.lose_first_answers.__name__ in faults

    def end(self) -> None:
        super().end()
        self.world.fabric.on_write = None

    def strike(self) -> None:
        self.lose_first_answers()

    def lose_first_answers(self) -> None:
        """Once more, also of those that have lost theirs a while ago."""
        now = self.world.loop.time()
        if now >= self._may_lose_at:
            self._may_lose_at = now + SPARED_S
            self._lost.clear()

    def _written(self, transport: SimulatedTransport, data: bytes) -> None:
        peer = transport.peer
        if not self.is_on or peer is None:
            return
        asked = self._asked.get(transport)
        if asked is None:
            asked = _Asked(Frames(), Frames(), {})
            self._asked[transport] = self._asked[peer] = asked
        if transport.is_asking:
            for head in asked.requests.heads(data, REQUEST_PART.stop):
                asked.kinds[head[REQUEST_PART]] = int.from_bytes(head[REQUEST_API])
            return
        for head in asked.answers.heads(data, RESPONSE_PART.stop):
            kind = asked.kinds.pop(head[RESPONSE_PART], None)
            if kind is not None and self._loses(peer, kind):
                self._lose(transport, peer, kind)
                return

    def _loses(self, peer: SimulatedTransport, kind: int) -> bool:
        whom = peer.remote_host if self._is_of_each_peer else ""
        first = (peer.process.name, whom, kind)
        is_first = first not in self._lost
        self._lost.add(first)
        return is_first

    def _lose(self, transport: SimulatedTransport, peer: SimulatedTransport, kind: int) -> None:
        is_silent = self.random.random() < SILENT
        what = f"{ApiKey(kind).name} to {peer.process.name} from {transport.host} {is_silent}"
        self.world.fault_injected("answer lost", what)
        if is_silent:
            self.world.fabric.silence(transport)
        else:
            self.world.fabric.reset(transport)
