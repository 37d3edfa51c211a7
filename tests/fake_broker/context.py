"""What a handler is given with a request.

Owns the questions handlers ask of the script of faults. Must not know any API. Invariant: an error
of the script is answered only where the script put it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.protocol import ErrorCode
from moldau.protocol.schema import Struct
from tests.fake_broker.faults import DEFAULT_LEVELS, AnswerError, Level
from tests.fake_broker.recorder import Received

if TYPE_CHECKING:
    from tests.fake_broker.cluster import FakeCluster
    from tests.fake_broker.node import FakeNode

NONE = ErrorCode.NONE


@dataclass(slots=True)
class Context:
    """One request on its way through a handler."""

    cluster: FakeCluster
    node: FakeNode
    received: Received
    errors: tuple[AnswerError, ...] = ()

    @property
    def version(self) -> int:
        """The request's version."""
        return self.received.api_version

    def refusal(
        self, level: Level, topic: str | None = None, partition: int | None = None
    ) -> ErrorCode:
        """The error to answer here without doing anything; NONE to go on."""
        return self._scripted(level, topic, partition, after_apply=False)

    def afterthought(
        self, level: Level, topic: str | None = None, partition: int | None = None
    ) -> ErrorCode:
        """The error to answer here although everything was done; NONE for none."""
        return self._scripted(level, topic, partition, after_apply=True)

    def _scripted(
        self, level: Level, topic: str | None, partition: int | None, *, after_apply: bool
    ) -> ErrorCode:
        for error in self.errors:
            usual = DEFAULT_LEVELS.get(self.received.api_key, "top")
            if (
                (error.level or usual) == level
                and error.after_apply == after_apply
                and error.topic in (None, topic)
                and error.partition in (None, partition)
            ):
                return error.code
        return NONE


def fit_version(message: Struct, version: int) -> None:
    """Take out what a version of a response has no place for."""
    for spec in message.spec().fields:
        if version not in spec.versions:
            if getattr(message, spec.name) != spec.default:
                fresh = spec.fresh_default
                setattr(message, spec.name, fresh() if fresh else spec.default)
            continue
        value = getattr(message, spec.name)
        if isinstance(value, list):
            for each in value:
                if isinstance(each, Struct):
                    fit_version(each, version)
        elif isinstance(value, Struct) and type(value).shared_default() is not value:
            fit_version(value, version)


Handler = Callable[[Context, Any], Awaitable[Any]]
"""Takes the decoded request, returns the response message (None: no answer)."""
