"""What a console is given: the way into the cluster, what it is called, its limits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aiohttp import web

from moldau.console.figures import NodeFigures
from moldau.console.guard import LOOPBACK_NAMES
from moldau.console.people import Way

NODE, COMMAND = "node", "command"
MAX_REQUESTS: Final = 64
MAX_REQUESTS_PER_PERSON: Final = 16
MAX_STREAMS: Final = 256
MAX_STREAMS_PER_PERSON: Final = 128


class Line(Protocol):
    """The connection that a request came by; its listener limits what clients may take."""

    def takes_body(self) -> None:
        """A body belongs to the request, and will be read as it comes."""

    def goes_on(self) -> None:
        """Something has moved: the time for an answer begins again."""


class _Unlimited:
    def takes_body(self) -> None:
        pass

    def goes_on(self) -> None:
        pass


UNLIMITED: Final = _Unlimited()


class MetadataLog(Protocol):
    """The metadata log as the node that serves the console has it; documents are JSON's.

    It does not know who asks: its caller has seen that the person may read all of it. What is
    secret in it is never shown.
    """

    async def elections(self) -> list[dict[str, Any]]:
        """Leaders of the quorum whose epochs the log still has: `epoch`, `leader_id`, `at_ms`.

        Raises:
            MetadataUnknown: the node cannot say.
        """

    async def records(self, from_offset: int | None, limit: int) -> dict[str, Any]:
        """Committed records in order: `records`, `next`, `start_offset`, `end_offset`.

        Args:
            from_offset: the first one; where the log begins behind it, that; None for the newest.

        Raises:
            MetadataUnknown: the node cannot say.
        """


class MetadataUnknown(Exception):
    """Why the node cannot say what it was asked about the metadata.

    Attributes:
        is_gone: it existed once, or never will; else asking again may help.
    """

    def __init__(self, reason: str, *, is_gone: bool = False) -> None:
        super().__init__(reason)
        self.is_gone = is_gone


@dataclass(frozen=True, slots=True)
class Limits:
    """What one reader of records may take; more is cut, and the answer says so.

    Attributes:
        records, size_bytes, seconds: of one search.
        requests: under way at a time, those that stream not counted.
        requests_per_person: the same, of one person.
        streams: at a time, and of one person.
    """

    records: int = 1_000_000
    size_bytes: int = 1 << 30
    seconds: float = 60.0
    requests: int = MAX_REQUESTS
    requests_per_person: int = MAX_REQUESTS_PER_PERSON
    streams: int = MAX_STREAMS
    streams_per_person: int = MAX_STREAMS_PER_PERSON


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """One console.

    Attributes:
        way: into the cluster.
        needs_login: whether people say who they are; else all act as the console itself.
        names: what the listener is called, in lower case, beside its address.
        served_from: "node" or "command".
        registry: settings of a schema registry, if there is one.
        line_of: gives the connection of a request.
        node_figures: asks the node that serves it, if one does.
        now_s: a clock that never goes back.
        metadata_log: where a node of ours serves the console.
    """

    way: Way
    needs_login: bool = False
    names: Collection[str] = LOOPBACK_NAMES
    served_from: str = COMMAND
    is_read_only: bool = False
    registry: Mapping[str, object] = field(default_factory=dict, repr=False)
    limits: Limits = Limits()
    node_figures: Callable[[], Awaitable[NodeFigures | None]] | None = None
    line_of: Callable[[web.BaseRequest], Line] = lambda _: UNLIMITED
    now_s: Callable[[], float] = time.monotonic
    metadata_log: MetadataLog | None = None

    @property
    def logins(self) -> tuple[str, ...]:
        """What people log in with; () where all act as the console itself."""
        return self.way.logins if self.needs_login else ()
