"""The script of faults: what goes wrong with which request.

Owns the kinds of faults and the matching of requests to them. Must not do anything about them: the
connection and the handlers carry them out. Invariant: a fault fires for exactly the requests that
were asked for (from the n-th that fits, so many times), and wakes the callers that wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from moldau.protocol import ApiKey, ErrorCode

if TYPE_CHECKING:
    from tests.fake_broker.recorder import Received

Level = Literal["top", "topic", "partition"]

DEFAULT_LEVELS: Final[dict[ApiKey, Level]] = {
    ApiKey.PRODUCE: "partition",
    ApiKey.FETCH: "partition",
    ApiKey.LIST_OFFSETS: "partition",
    ApiKey.METADATA: "topic",
    ApiKey.OFFSET_COMMIT: "partition",
    ApiKey.CREATE_TOPICS: "topic",
    ApiKey.DELETE_TOPICS: "topic",
    ApiKey.DELETE_RECORDS: "partition",
    ApiKey.CREATE_PARTITIONS: "topic",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "partition",
    ApiKey.ADD_PARTITIONS_TO_TXN: "partition",
    ApiKey.TXN_OFFSET_COMMIT: "partition",
}
"""Where an API's error usually stands; the whole answer for those not named."""


@dataclass(frozen=True, slots=True)
class AnswerError:
    """Answer with an error; nothing is done, unless `after_apply`.

    `level` "top" is the whole answer's (a group's, a member's, a key's, where only these have a
    place for it), None the API's usual one. `topic` and `partition` limit it to one of them.
    """

    code: ErrorCode
    level: Level | None = None
    topic: str | None = None
    partition: int | None = None
    after_apply: bool = False


@dataclass(frozen=True, slots=True)
class Throttle:
    """Answer as always, with this throttle time."""

    throttle_time_ms: int


@dataclass(frozen=True, slots=True)
class CutRequest:
    """End the connection when so many bytes of the request (size prefix included) have come; it is
    not carried out. `reset`: with RST instead of FIN.
    """

    at_byte: int = 0
    reset: bool = False


@dataclass(frozen=True, slots=True)
class CutResponse:
    """Carry the request out, send so many bytes of the answer and end the connection."""

    at_byte: int = 0
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """Wait until the fault is released: before the request is carried out, or with an answer of
    which `after_bytes` bytes have been sent (`after_apply`). The connection stays open.
    """

    after_apply: bool = False
    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WrongCorrelation:
    """Answer with another request's correlation id."""

    delta: int = 1


@dataclass(frozen=True, slots=True)
class Garbage:
    """Carry the request out and send these bytes in place of the answer; `framed` puts the size
    and the right correlation id in front.
    """

    data: bytes
    framed: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Answer with what the function makes of the request; None ends the connection."""

    answer: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Change:
    """Answer as always, after the function has changed the response in place."""

    change: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Run:
    """Call the function before the request is carried out (to move a leader just then)."""

    function: Callable[[], object]


Action = (
    AnswerError
    | Throttle
    | CutRequest
    | CutResponse
    | Stall
    | WrongCorrelation
    | Garbage
    | Replace
    | Change
    | Run
)


@dataclass(eq=False, slots=True)
class Fault:
    """One line of the script, and what became of it."""

    api_key: ApiKey | None
    action: Action
    skip_count: int
    left_count: int | None
    node_id: int | None
    when: Callable[[Received], bool] | None
    fired_count: int = 0
    _fired: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    async def fired(self, timeout_s: float = 20.0) -> None:
        """Wait until it has fired (once)."""
        async with asyncio.timeout(timeout_s):
            await self._fired.wait()

    def release(self) -> None:
        """Let go of whatever stalls on it, now and later."""
        self._released.set()

    async def released(self) -> None:
        """Wait for `release`."""
        await self._released.wait()

    @property
    def is_spent(self) -> bool:
        """Whether it can fire no more."""
        return self.left_count == 0

    def fits(self, api_key: int, node_id: int) -> bool:
        """Whether requests of this API to this node count."""
        return (
            not self.is_spent
            and self.api_key in (None, api_key)
            and self.node_id in (None, node_id)
        )

    def take(self) -> bool:
        """Count one request that fits; whether it is its turn."""
        if self.skip_count:
            self.skip_count -= 1
            return False
        if self.left_count is not None:
            self.left_count -= 1
        self.fired_count += 1
        self._fired.set()
        return True


class FaultScript:
    """All faults of a cluster, in the order in which they were added.

    One request may meet several faults; each counts requests by itself.
    """

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(
        self,
        api_key: ApiKey | None,
        action: Action,
        *,
        nth: int = 1,
        times: int | None = 1,
        node_id: int | None = None,
        when: Callable[[Received], bool] | None = None,
    ) -> Fault:
        """Fire for the `nth` request from now on that fits, and the `times` - 1 after it (None: all
        of them). `api_key` None means every API but ApiVersions and SASL's.
        """
        assert when is None or not isinstance(action, CutRequest), "a cut comes before decoding"
        fault = Fault(api_key, action, nth - 1, times, node_id, when)
        self._faults.append(fault)
        return fault

    def sequence(self, api_key: ApiKey, *actions: Action | None) -> list[Fault]:
        """The next requests of one API meet these in turn; None lets one through."""
        return [
            self.add(api_key, action, nth=place)
            for place, action in enumerate(actions, start=1)
            if action is not None
        ]

    def remove(self, fault: Fault) -> None:
        """Forget a fault; what it stalls goes on."""
        fault.release()
        self._faults.remove(fault)

    def clear(self) -> None:
        """Forget all."""
        for fault in self._faults:
            fault.release()
        self._faults.clear()

    @property
    def waiting(self) -> list[Fault]:
        """Those that were asked for a number of times and have not fired as often."""
        return [fault for fault in self._faults if fault.left_count]

    def cut_before_reading(self, api_key: int, node_id: int) -> CutRequest | None:
        """The cut that this request meets, known by its header's first bytes."""
        for fault in self._faults:
            if (
                isinstance(fault.action, CutRequest)
                and self._counts(fault, api_key, node_id)
                and fault.take()
            ):
                return fault.action
        return None

    def take(self, received: Received) -> list[Fault]:
        """The faults that this request meets."""
        return [
            fault
            for fault in self._faults
            if not isinstance(fault.action, CutRequest)
            and self._counts(fault, received.api_key, received.node_id)
            and (fault.when is None or fault.when(received))
            and fault.take()
        ]

    def _counts(self, fault: Fault, api_key: int, node_id: int) -> bool:
        if fault.api_key is None and api_key in _PREAMBLE:
            return False
        return fault.fits(api_key, node_id)


_PREAMBLE: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
