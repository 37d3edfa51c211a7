"""One request on the server side: its place in the order of responses, and what its handler sees.

Owns: the request's frame until the response has been built, the response until it leaves, what a
large message takes until it is answered, and the throttle time that goes into the response
(`quotas` computes it). Must not: interpret bodies, know any API, or be touched from another thread
than its connection's loop. Invariants: a request is answered exactly once, by `respond`,
`respond_nothing` or `close`; the frame's bytes are released exactly once; the sender of a forwarded
request is its client, never the broker that forwarded it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from sys import getrefcount
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from moldau.protocol.access_control import (
    CLUSTER_RESOURCE_NAME,
    SUPPORTED_OPERATIONS,
    Operation,
    ResourceType,
)
from moldau.protocol.api_keys import ApiKey, api_name
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.headers import RequestHeader, encode_response
from moldau.protocol.produce_parts import has_more_parts
from moldau.protocol.schema import Message
from moldau.protocol.structs import ArrayType, Struct, StructType
from moldau.protocol.types import Part
from moldau.runtime.files import FileRegion
from moldau.runtime.slices import Work
from moldau.runtime.telemetry.metrics import Counter, Histogram, Registry
from moldau.server.authorizer import Authorizer
from moldau.server.fair_shares import FairShares, Lane
from moldau.server.outgoing import Offload
from moldau.server.quotas.client_quotas import Quotas
from moldau.server.quotas.request_time import Stopwatch
from moldau.server.turns import InTurns

T = TypeVar("T")

AT_ONCE_BYTES: Final = 16 * 1024
"""A body above it is decoded in slices: it may hold so many elements that this takes 3 ms."""

COPIED_BODY_BYTES: Final = 1024
"""A body up to this size is copied where its request waits for a place."""

LARGE_BODY_BYTES: Final = 64 * 1024
"""The answer to a longer request is encoded off the loop."""

LARGE_PART_COUNT: Final = 500
"""A Produce request with more topics and partitions is decoded in slices."""

LARGE_ELEMENT_COUNT: Final = 1000
"""A response with an array above it is encoded off the loop."""


FREED_AT_ONCE: Final = 500

_NAMED_ONCE: Final = 2
"""What `getrefcount` says of an object that only a local variable names."""


class Gate(Protocol):
    """Where the requests of a connection on a SASL listener pass: `authentication.gate`."""

    def takes(self, request: Request) -> bool | Work: ...

    def read_header(self, frame: memoryview) -> tuple[RequestHeader, int]: ...

    def waits_since_ms(self, opened_ms: float) -> float | None: ...


class Connection(Protocol):
    """A client's connection, as its requests and their handlers see it.

    `state` is for handlers that keep something per connection (fetch sessions, SASL). The client's
    software name and version are set by the ApiVersions handler. `token_authenticated` says whether
    a delegation token has proved the principal. `gate` is where requests pass on a
    SASL listener.
    """

    client_host: str
    client_software_name: str
    client_software_version: str
    gate: Gate | None
    is_closed: bool
    listener_name: str
    principal: str
    token_authenticated: bool
    state: dict[str, Any]

    @property
    def offload(self) -> Offload: ...

    def throttle(self, delay_ms: float) -> None:
        """Handle no further request of this connection for `delay_ms` (quota violated, KIP-219)."""

    def hold(self, request: Request) -> None:
        """Count a request that waits where room is limited for all connections, until it is
        answered. Those behind it wait when one connection takes too much of that room.
        """

    def suspend(self) -> None:
        """Handle no further request of this connection until `proceed`, once for each call: one
        that takes several turns of the loop keeps its place in the order.
        """

    def proceed(self) -> None: ...

    def start(self, work: Work) -> None:
        """Run work that ends by itself, for a request of this connection."""

    def in_turns(self, work: Coroutine[object, None, T]) -> InTurns[T]:
        """The same coroutine, for a task: a step waits while its party (the principal, or the
        address of clients without one) has had what it may have of the loop.
        """

    def on_close(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with the connection when it ends."""

    def close(self, reason: str) -> None:
        """End the connection now; answers not sent yet are dropped. One log line, rate limited."""

    def begin_closing(self) -> None:
        """Take no further request; close when everything accepted has been answered and sent."""

    def authenticate(self, principal: str) -> None:
        """The peer has shown who it is, for the first time or again."""

    def limit_frames(self, max_bytes: int, min_bytes: int = 1) -> None:
        """Close the connection of a client whose next request is larger, or smaller."""

    def release_frame(self, frame: memoryview) -> None:
        """The frame's bytes are not needed any more."""

    def on_response(self, request: Request) -> None:
        """The request has been answered."""


class TooLarge(RemoteProtocolError):
    """A request that takes more memory than it may."""


class Decoded:
    """A large request's message, and the memory that is reserved for it until `release`."""

    __slots__ = (
        "_free",
        "_held_bytes",
        "_limit_bytes",
        "_memory",
        "_party",
        "_used_bytes",
        "message",
    )

    def __init__(
        self,
        memory: FairShares,
        free: Callable[[list[Message]], None],
        party: str,
        held_bytes: int,
    ) -> None:
        self._memory = memory
        self._free = free
        self._party = party
        self._held_bytes = self._limit_bytes = held_bytes
        self._used_bytes = 0
        self.message: Message | None = None

    def use(self, message: Message, size_bytes: int) -> None:
        """So much more is in use. Raises TooLarge."""
        self.message = message
        self._used_bytes += size_bytes
        if self._used_bytes > self._limit_bytes:
            raise TooLarge(f"it takes more than {self._limit_bytes} bytes decoded")

    def limit(self, limit_bytes: int) -> None:
        """It may not take more than that."""
        self._limit_bytes = min(self._limit_bytes, limit_bytes)

    def keep(self) -> None:
        """It takes no more than now."""
        unused = self._held_bytes - self._used_bytes
        if unused > 0:
            self._held_bytes -= unused
            self._memory.give_back(self._party, unused)

    def release(self) -> None:
        """It takes nothing any more; what it was made of goes in slices of the loop."""
        held, self._held_bytes = self._held_bytes, 0
        message, self.message = self.message, None
        if held:
            self._memory.give_back(self._party, held)
        if message is not None:
            # Later: who answers may still look at it.
            asyncio.get_running_loop().call_soon(self._free, [message])


class Request:
    """A decoded request header, the undecoded body, and the way to answer.

    `api_key` is a plain number when it is unknown; `api_version` is not checked against anything.
    `body` is the frame after the header: writable, valid until the request is answered or
    `release_body` is called. Answering may happen inside the handler or any time later; responses
    leave in request order.
    """

    __slots__ = (
        "_frame",
        "_parts",
        "api_key",
        "api_version",
        "body",
        "client_id",
        "connection",
        "correlation_id",
        "decoded",
        "handled_ms",
        "is_answered",
        "received_ms",
        "size_bytes",
    )

    def __init__(
        self,
        connection: Connection,
        header: RequestHeader,
        header_size: int,
        frame: memoryview,
        received_ms: float,
    ) -> None:
        self.connection = connection
        self.api_key: int = header.api_key
        self.api_version: int = header.api_version
        self.correlation_id: int = header.correlation_id
        self.client_id: str | None = header.client_id
        self.size_bytes = len(frame)
        self.body = frame[header_size:]
        self.received_ms = received_ms
        self.handled_ms = received_ms
        self._frame: memoryview | None = frame
        self._parts: Sequence[Part] | None = None
        self.decoded: Decoded | None = None
        """What a large request takes, decoded, until it is answered."""
        self.is_answered = False
        """Whether there is an answer; a large one may still be on its way to being encoded."""

    def __repr__(self) -> str:
        return (
            f"Request(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r})"
        )

    @property
    def is_large(self) -> bool:
        """Whether its body, which must be there, may take long to decode. A Produce request is
        large by its records, which are not decoded, unless it has very many of them.
        """
        if self.size_bytes <= AT_ONCE_BYTES:
            return False
        return self.api_key != ApiKey.PRODUCE or has_more_parts(
            self.body, self.api_version, LARGE_PART_COUNT
        )

    @property
    def is_done(self) -> bool:
        return self._parts is not None

    @property
    def is_connection_lost(self) -> bool:
        """Whether the client has gone and reads no answer (answering is still required)."""
        return self.connection.is_closed

    def respond(self, message: Message, *, api_version: int | None = None) -> None:
        """Answer with a message, encoded in the request's version unless another is named; a large
        one, or that of a large request, off the loop: it belongs to the request from now on.

        Raises LocalProtocolError when the message cannot be encoded in that version; nothing is
        sent then.
        """
        version = self.api_version if api_version is None else api_version
        is_long = self.size_bytes > LARGE_BODY_BYTES and self.api_key != ApiKey.PRODUCE
        if is_long or is_large_message(message):
            self.is_answered = True
            self.connection.start(self._respond_large(message, version))
        else:
            self.respond_parts(self._encoded(message, version))

    async def _respond_large(self, message: Message, api_version: int) -> None:
        owned = [message]
        del message
        try:
            parts = await self.connection.offload(self._encoded_and_freed, owned, api_version)
        except BaseException:
            self.close("an answer failed inside the node")
            raise
        self.respond_parts(parts)

    def _encoded_and_freed(self, owned: list[Message], api_version: int) -> list[Part]:
        """The last message of `owned`, encoded; the loop is not the one that takes it apart."""
        message = owned.pop()
        parts = self._encoded(message, api_version)
        if getrefcount(message) == _NAMED_ONCE:
            for _ in taken_apart(message):
                pass
        return parts

    def _encoded(self, message: Message, api_version: int) -> list[Part]:
        return encode_response(message, api_version=api_version, correlation_id=self.correlation_id)

    def respond_parts(self, parts: Sequence[Part]) -> None:
        """Answer with an encoded response, size prefix and header included.

        Parts may refer to the request's own frame: it is kept until they have been copied out. Once
        the connection is closed an answer is only dropped.
        """
        assert self._parts is None or self.connection.is_closed, "a request is answered once"
        self.is_answered = True
        self._parts = parts
        if self.decoded is not None:
            self._release_decoded()
        self.connection.on_response(self)

    def respond_nothing(self) -> None:
        """Be done without a response (Produce with acks=0); later responses need not wait."""
        self.respond_parts(())

    def close(self, reason: str) -> None:
        """Close the connection instead of answering, for a peer that broke the protocol."""
        self.is_answered = True
        self._release_decoded()
        self.connection.close(reason)
        self.discard()

    def _release_decoded(self) -> None:
        decoded = self.decoded
        if decoded is not None:
            self.decoded = None
            decoded.release()

    def release_body(self) -> None:
        """Give the frame back early: for requests that wait long and need its bytes no more
        (idempotent).

        After it neither `body` nor any slice of it may be read.
        """
        frame = self._frame
        if frame is not None:
            self._frame = None
            self.body.release()
            self.connection.release_frame(frame)

    def copy_small_body(self) -> None:
        """Give the frame back and keep a copy of a small body: a request that waits before it is
        decoded would keep the whole buffer that its connection reads into.
        """
        if len(self.body) <= COPIED_BODY_BYTES:
            body = memoryview(bytes(self.body))
            self.release_body()
            self.body = body

    def take_parts(self) -> Sequence[Part]:
        """For the connection: the response's parts, once."""
        parts = self._parts
        assert parts is not None
        self._parts = ()
        return parts

    def discard(self) -> None:
        """For the connection: the response will not be sent; drop what it holds."""
        for part in self._parts or ():
            if isinstance(part, FileRegion):
                part.release()
        self._parts = ()
        self.release_body()


@dataclass(slots=True, eq=False)
class Sender:
    """The client behind a request, and the questions to the authorizer about it.

    Attributes:
        api_version: of the response; None when the response is not encoded (in process).
        timeout_ms: how long the answer may take; None for the request's own limit.
        listener_name: the listener that the request came in by.
        token_authenticated: whether a delegation token has proved the principal (KIP-48).
        api_key: of the request; None for what is no request of Kafka's protocol.
    """

    principal: str
    authorizer: Authorizer
    client_id: str | None = None
    _: KW_ONLY
    client_host: str = "127.0.0.1"
    api_version: int | None = None
    listener_name: str = ""
    timeout_ms: float | None = None
    token_authenticated: bool = False
    api_key: int | None = None

    def authorized(
        self,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
        *,
        logs_denied: bool = True,
    ) -> bool:
        """Whether the sender may do this.

        Args:
            logs_denied: False where a denial refuses nothing: the resource is only left out of a
                list, or another permission is asked for instead.
        """
        authorizer, principal, host = self.authorizer, self.principal, self.client_host
        question = (principal, host, operation, resource_type, resource_name)
        is_allowed = authorizer.authorize(*question)
        log = authorizer.log
        if log is not None and (log.tells_allowed if is_allowed else logs_denied):
            log.decided(
                *question,
                lambda: authorizer.rule(*question),
                is_allowed=is_allowed,
                listener=self.listener_name,
                request=self.api_key,
            )
        return is_allowed

    def authorized_topic(
        self, operation: Operation, topic_name: str, *, logs_denied: bool = True
    ) -> bool:
        return self.authorized(operation, ResourceType.TOPIC, topic_name, logs_denied=logs_denied)

    def authorized_cluster(self, operation: Operation, *, logs_denied: bool = True) -> bool:
        return self.authorized(
            operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, logs_denied=logs_denied
        )

    def authorized_by_resource_type(
        self, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is any resource of that type the sender may do this to (KIP-679)."""
        return self.authorizer.authorize_by_resource_type(
            self.principal, self.client_host, operation, resource_type
        )

    def authorized_operations_on(self, resource_type: ResourceType, resource_name: str) -> int:
        """What the sender may do there (KIP-430): bit n stands for the operation numbered n. As
        these are no actions, none of them is logged.
        """
        allowed, authorize = 0, self.authorizer.authorize
        who = (self.principal, self.client_host)
        for operation in SUPPORTED_OPERATIONS[resource_type]:
            if authorize(*who, operation, resource_type, resource_name):
                allowed |= 1 << operation
        return allowed

    def authorized_topic_operations(self, topic_name: str) -> int:
        return self.authorized_operations_on(ResourceType.TOPIC, topic_name)

    def authorized_cluster_operations(self) -> int:
        """None, unless the sender may describe the cluster."""
        if not self.authorized_cluster(Operation.DESCRIBE):
            return 0
        return self.authorized_operations_on(ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)


class RequestContext(Sender):
    """One request in a handler's hands; outlives the handler's call when the answer comes later."""

    __slots__ = (
        "change_lane",
        "quotas",
        "received_ms",
        "request",
        "stopwatch",
        "throttle_time_ms",
    )

    api_key: int
    api_version: int
    change_lane: Callable[[Lane], Awaitable[None]]
    """For a request that is answered by a coroutine: gives its place back, and returns when it has
    one among those of another kind, for what it has to wait for from now on."""

    def __init__(
        self, request: Request, authorizer: Authorizer, quotas: Quotas | None = None
    ) -> None:
        connection = request.connection
        self.request = request
        self.authorizer = authorizer
        self.api_key = request.api_key
        self.api_version = request.api_version
        self.client_id = request.client_id
        self.received_ms = request.received_ms
        self.listener_name = connection.listener_name
        self.principal = connection.principal
        self.token_authenticated = connection.token_authenticated
        self.client_host = connection.client_host
        self.timeout_ms = None
        self.throttle_time_ms = 0
        self.quotas = quotas
        self.stopwatch: Stopwatch | None = None
        """Measures how long the request holds the loop, where a quota needs it."""

    @property
    def is_answered(self) -> bool:
        """Whether the request has its answer, or never gets one."""
        return self.request.is_answered

    def throttle(self, throttle_time_ms: int) -> None:
        """Ask for a pause; the longest one asked for wins."""
        self.throttle_time_ms = max(self.throttle_time_ms, throttle_time_ms)

    def record_request_time(self) -> int:
        """Count the time that the request took, once; returns its pause in milliseconds."""
        stopwatch, self.stopwatch = self.stopwatch, None
        if stopwatch is None or self.quotas is None:
            return 0
        return self.quotas.record_request(self.principal, self.client_id, stopwatch.elapsed_ms())

    def exempt_from_request_quota(self) -> None:
        """Do not count the time of this request: a node of the cluster has sent it."""
        self.stopwatch = None

    def throttle_at_once(self, throttle_time_ms: int) -> None:
        """Ask for a pause that begins before the answer."""
        if throttle_time_ms:
            self.throttle(throttle_time_ms)
            self.request.connection.throttle(throttle_time_ms)

    def hold_if_waiting(self) -> None:
        """Give its bytes back, and count it as waiting for a commit, unless it is answered."""
        if not self.is_answered:
            self.request.release_body()
            self.request.connection.hold(self.request)

    def respond(self, message: Message) -> None:
        """Send the response in its turn on the connection; dropped when the client has gone."""
        assert not self.is_answered, "a request is answered once"
        if self.stopwatch is not None:
            self.throttle(self.record_request_time())
        # The answer of a request that was forwarded has the controller's.
        told_ms: int = getattr(message, "throttle_time_ms", 0)
        if self.throttle_time_ms or told_ms:
            self.throttle(told_ms)
            if hasattr(message, "throttle_time_ms"):
                message.throttle_time_ms = self.throttle_time_ms
            self.request.connection.throttle(self.throttle_time_ms)
        try:
            self.request.respond(message)
        finally:
            if not self.is_answered:
                # Left open, everything behind it on the connection would wait for ever.
                self.close("an answer failed inside the node")

    def respond_nothing(self) -> None:
        """Finish a request whose sender expects no response (acks=0)."""
        assert not self.is_answered, "a request is answered once"
        if self.throttle_time_ms:
            self.request.connection.throttle(self.throttle_time_ms)
        self.request.respond_nothing()

    def close(self, reason: str) -> None:
        """Close the connection instead of answering; `reason` goes to the log."""
        self.request.close(reason)


def is_large_message(struct: Struct) -> bool:
    """Whether an array has LARGE_ELEMENT_COUNT elements, in the first of all elements as well."""
    kind = type(struct)
    for name, has_inner in (_ARRAYS.get(kind) or arrays_of(kind)).items():
        elements = getattr(struct, name)
        if elements and (
            len(elements) > LARGE_ELEMENT_COUNT or (has_inner and is_large_message(elements[0]))
        ):
            return True
    return False


def taken_apart(struct: Struct) -> Iterator[None]:
    """Give the elements of a struct's large arrays free, some at a time: all at once would hold the
    interpreter for 50 ms. What others hold too, an array or a struct, stays as it is, and so does
    what is not set yet.
    """
    for name in arrays_of(type(struct)):
        elements = getattr(struct, name, None)
        setattr(struct, name, None)
        if type(elements) is not list or getrefcount(elements) != _NAMED_ONCE:
            continue
        while elements:
            if not isinstance(elements[-1], Struct) or not arrays_of(type(elements[-1])):
                del elements[-FREED_AT_ONCE:]
            else:
                for _ in range(min(FREED_AT_ONCE, len(elements))):
                    element = elements.pop()
                    if getrefcount(element) == _NAMED_ONCE:
                        yield from taken_apart(element)
                    del element
            yield


_ARRAYS: Final[dict[type[Struct], dict[str, bool]]] = {}


def arrays_of(struct: type[Struct]) -> dict[str, bool]:
    """Its arrays; whether their elements have any."""
    arrays = _ARRAYS.get(struct)
    if arrays is None:
        kinds = {each.name: each.type for each in struct.spec().fields}
        arrays = _ARRAYS[struct] = {
            name: isinstance(kind.element, StructType) and bool(arrays_of(kind.element.struct))
            for name, kind in kinds.items()
            if isinstance(kind, ArrayType)
        }
    return arrays


REQUEST_METRICS: Final = "kafka.network:type=RequestMetrics,name="


class _Instruments(NamedTuple):
    requests: Counter
    local_time_ms: Histogram
    total_time_ms: Histogram
    request_bytes: Counter
    response_bytes: Counter


class RequestMetrics:
    """Counts and times of answered requests, by API, under Kafka's names; five additions each."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_api: dict[int, _Instruments] = {}

    def request_completed(
        self, request: Request, response_bytes: int, local_ms: float, total_ms: float
    ) -> None:
        """`local_ms` in the handler, `total_ms` from reception until handed to the socket."""
        instruments = self._by_api.get(request.api_key) or self._of(request.api_key)
        instruments.requests.value += 1
        instruments.local_time_ms.observe(local_ms)
        instruments.total_time_ms.observe(total_ms)
        instruments.request_bytes.value += request.size_bytes
        instruments.response_bytes.value += response_bytes

    def _of(self, api_key: int) -> _Instruments:
        name = api_name(api_key)
        registry = self._registry
        instruments = self._by_api[api_key] = _Instruments(
            registry.counter(f"{REQUEST_METRICS}RequestsPerSec", request=name),
            registry.histogram(f"{REQUEST_METRICS}LocalTimeMs", request=name),
            registry.histogram(f"{REQUEST_METRICS}TotalTimeMs", request=name),
            registry.counter(f"{REQUEST_METRICS}RequestBytes", request=name),
            registry.counter(f"{REQUEST_METRICS}ResponseBytes", request=name),
        )
        return instruments
