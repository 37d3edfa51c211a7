"""The way from a broker to the active controller.

Owns the port through which a broker asks the controller for a change and waits for its answer, and
its form over the network: the present leader, repetition across failover, Envelopes for requests of
clients (KIP-590). Must not interpret requests. Invariant: a request is either answered, or fails
with ControllerUnavailable; it is never silently dropped, and it is never sent to two controllers at
the same time.

A request whose answer was lost is sent again, as Apache Kafka's brokers do: it may then be served
twice, and the second answer may be TOPIC_ALREADY_EXISTS for a topic that the first one created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, cast

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.envelope import encode_envelope, enveloped_response
from moldau.protocol.error_responses import has_error
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.headers import decode_response, may_throttle
from moldau.protocol.messages.p58_envelope import UNKNOWN_END_OFFSET, EnvelopeRequest
from moldau.protocol.schema import AnyRequest, Message, Request, Response
from moldau.runtime.connection import DEFAULT_REQUEST_TIMEOUT_MS, Connection
from moldau.runtime.connector import Connector
from moldau.runtime.fault_words import words_of
from moldau.runtime.leader_link import LINK_ERRORS, LeaderAddress, LeaderLink
from moldau.runtime.loop_thread import LoopBusy, LoopThread
from moldau.server.apis import APIS
from moldau.server.authorizer import Authorizer
from moldau.server.outgoing import Offload, run_inline
from moldau.server.request import Sender

MAX_WAITING_REQUESTS: Final = 1_000
DEFAULT_TIMEOUT_MS: Final = 30_000
RETRY_BACKOFF_MS: Final = 100
"""The pause before a request is tried again; a new leader ends it early."""

INTERNAL_PRINCIPAL: Final = "User:ANONYMOUS"
"""The principal of a broker's own requests."""


class ControllerUnavailable(Exception):
    """No active controller answered in time; the change may or may not have happened.

    `error` is the one for a client.
    """

    def __init__(self, message: str, error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT) -> None:
        super().__init__(message)
        self.error = error


class ForwardedClient(NamedTuple):
    """The client whose request a broker forwards, and how it has sent it.

    Attributes:
        api_version: of a request that is forwarded unchanged; None: any that both sides know.
        token_authenticated: whether a delegation token has proved who it is.
        listener_name: the listener it came in by, which an Envelope does not tell.
    """

    host: str
    client_id: str | None = None
    api_version: int | None = None
    token_authenticated: bool = False
    listener_name: str = ""
    correlation_id: int = 0


class ControllerAnswer(NamedTuple):
    """The controller's response, and the end of the metadata that was committed then: every change
    that the response reports is below. UNKNOWN_END_OFFSET: this controller does not say (Apache
    Kafka's), or the request was the broker's own.
    """

    response: Any
    committed_end_offset: int = UNKNOWN_END_OFFSET


class ControllerChannel(Protocol):
    """Sends one request to the active controller (KIP-590's forwarding, from the broker's side)."""

    @property
    def active_controller_id(self) -> int:
        """The active controller as far as known, -1 while none is."""

    async def send(
        self, request: Request[Response], principal: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> Response:
        """The controller's response to a request of the broker's own, on behalf of `principal`.

        Raises:
            ControllerUnavailable: no answer within `timeout_ms`, or too many requests wait already.
        """

    async def forward(
        self,
        request: AnyRequest,
        principal: str,
        client: ForwardedClient,
        *,
        body: memoryview | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> ControllerAnswer:
        """As `send`, for the request of a client, whose `principal` the controller authorizes.

        Args:
            body: what the client sent: so another node gets it. The response comes back as bytes,
                too (a frame without its size), unless this node decided, the controller knows only
                older versions, or there may be a throttle time in it.
        """


class TryAgain(Exception):
    """This attempt brought no valid answer; another one may."""


class OwnController(NamedTuple):
    """The controller of this process, asked on its own thread.

    Attributes:
        answer: its response to a request, for the sender's permissions.
        committed_end_offset: as in `ControllerAnswer`; read after a response.
        authorizer: of clients' requests; what this process asks for itself is always permitted.
    """

    node_id: int
    thread: LoopThread
    answer: Callable[[Sender, Message], Coroutine[object, None, Message]]
    committed_end_offset: Callable[[], int]
    authorizer: Authorizer


class _Asked(NamedTuple):
    """A request and on whose behalf it is sent; `client` is None for the broker's own, `body` for
    what is to be encoded here.
    """

    request: AnyRequest
    principal: str
    client: ForwardedClient | None = None
    body: memoryview | None = None


class NetworkControllerChannel:
    """`ControllerChannel` over connections to the active controller, or to that of this process.

    Answers come in order on a connection, so what must not wait for a slow change has its own
    connection (the `link` of its row), as in Apache Kafka.

    Args:
        leader: the active controller as far as known; called on this loop.
        own: this process's controller, asked directly while it is the active one; None without one.
        request_timeout_ms: `controller.socket.timeout.ms`; the connection to a controller that owes
            an answer for so long is closed.
        connector: of the controllers' listener; in PLAINTEXT without one.
        offload: runs the coding of clients' requests beside the loop: they may be large.
    """

    def __init__(
        self,
        leader: Callable[[], LeaderAddress | None],
        *,
        own: OwnController | None = None,
        client_id: str = "moldau-broker",
        connector: Connector | None = None,
        request_timeout_ms: float = DEFAULT_REQUEST_TIMEOUT_MS,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        offload: Offload = run_inline,
    ) -> None:
        self._leader = leader
        self._own = own
        self._offload = offload
        self._retry_backoff_ms = retry_backoff_ms
        self._links = {
            lane: LeaderLink(
                client_id=f"{client_id}-{lane}",
                connector=connector,
                request_timeout_ms=request_timeout_ms,
            )
            for lane in dict.fromkeys(api.link for api in APIS.values())
        }
        self.waiting_count = 0
        self._leader_changed = asyncio.Event()
        self._is_closed = False

    @property
    def active_controller_id(self) -> int:
        leader = self._leader()
        return -1 if leader is None else leader.node_id

    def leader_changed(self) -> None:
        """The quorum has another leader, or none: stop waiting for answers of the old one."""
        leader = self._leader()
        for link in self._links.values():
            link.leader_changed(leader)
        self._leader_changed.set()

    async def close(self) -> None:
        """Give up; requests that wait fail with ControllerUnavailable."""
        self._is_closed = True
        self._leader_changed.set()
        for link in self._links.values():
            await link.close()

    async def send(
        self, request: Request[Response], principal: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> Response:
        return cast("Response", (await self._send(_Asked(request, principal), timeout_ms)).response)

    async def forward(
        self,
        request: AnyRequest,
        principal: str,
        client: ForwardedClient,
        *,
        body: memoryview | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> ControllerAnswer:
        return await self._send(_Asked(request, principal, client, body), timeout_ms)

    async def _send(self, asked: _Asked, timeout_ms: int) -> ControllerAnswer:
        if self.waiting_count >= MAX_WAITING_REQUESTS:
            raise ControllerUnavailable(f"{MAX_WAITING_REQUESTS} requests wait already")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        reason = "no controller is known to lead"
        self.waiting_count += 1
        try:
            while not self._is_closed:
                self._leader_changed.clear()
                leader = self._leader()
                if leader is not None:
                    try:
                        return await self._attempt(leader, asked, (deadline - loop.time()) * 1000)
                    except TryAgain as problem:
                        reason = str(problem)
                remaining = deadline - loop.time()
                if remaining <= 0:
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(remaining, self._retry_backoff_ms / 1000)):
                        await self._leader_changed.wait()
        finally:
            self.waiting_count -= 1
        raise ControllerUnavailable(
            f"{ApiKey(asked.request.API_KEY).name} was not answered in {timeout_ms} ms: {reason}"
        )

    async def _attempt(
        self, leader: LeaderAddress, asked: _Asked, timeout_ms: float
    ) -> ControllerAnswer:
        """One attempt at one leader. Raises TryAgain, ControllerUnavailable."""
        own, request = self._own, asked.request
        if own is not None and leader.node_id == own.node_id:
            return await self._ask_own(own, leader, asked, timeout_ms)
        link = self._links[APIS[ApiKey(request.API_KEY)].link]
        try:
            if asked.client is None:
                response = await link.send(leader, request, timeout_ms=timeout_ms)
                if has_error(response, ErrorCode.NOT_CONTROLLER):
                    raise TryAgain(f"{leader} is not the active controller")
                return ControllerAnswer(response)
            return await self._forward(link, leader, asked, asked.client, timeout_ms)
        except LINK_ERRORS as error:
            raise TryAgain(f"{leader}: {words_of(error)}") from error
        except LocalProtocolError as error:
            raise ControllerUnavailable(
                f"{leader} does not speak what was asked: {error}", ErrorCode.UNSUPPORTED_VERSION
            ) from error

    @staticmethod
    async def _ask_own(
        own: OwnController, leader: LeaderAddress, asked: _Asked, timeout_ms: float
    ) -> ControllerAnswer:
        client = asked.client
        if client is None:
            sender = Sender(asked.principal, Authorizer(), timeout_ms=int(timeout_ms))
        else:
            sender = Sender(
                asked.principal,
                own.authorizer,
                client.client_id,
                client_host=client.host,
                api_version=client.api_version,
                token_authenticated=client.token_authenticated,
                timeout_ms=int(timeout_ms),
                listener_name=client.listener_name,
                api_key=asked.request.API_KEY,
            )
        # The controller carries out what it was asked even when no caller waits any more: the
        # limit is this caller's.
        try:
            async with asyncio.timeout(max(timeout_ms, 0.0) / 1000):
                response = await own.thread.run(own.answer(sender, asked.request))
        except (TimeoutError, LoopBusy) as problem:
            raise TryAgain(f"{leader}: {words_of(problem)}") from problem
        if has_error(response, ErrorCode.NOT_CONTROLLER):
            raise TryAgain(f"{leader} is not the active controller")
        if client is None:
            return ControllerAnswer(response)
        return ControllerAnswer(response, own.committed_end_offset())

    async def _forward(
        self,
        link: LeaderLink,
        leader: LeaderAddress,
        asked: _Asked,
        client: ForwardedClient,
        timeout_ms: float,
    ) -> ControllerAnswer:
        request, code, body = asked.request, self._offload, asked.body
        api_version = -1

        async def envelope(connection: Connection) -> EnvelopeRequest:
            nonlocal api_version, code, body
            api_version = connection.best_version(
                request.API_KEY, type(request), max_version=client.api_version
            )
            if api_version != client.api_version:
                body = None
            elif body is not None:
                code = run_inline  # only copied, while the bytes are valid
            return await code(
                encode_envelope,
                request,
                api_version=api_version,
                correlation_id=client.correlation_id,
                client_id=client.client_id,
                principal=asked.principal,
                client_host=client.host,
                token_authenticated=client.token_authenticated,
                body=body,
            )

        answer = await link.send(leader, envelope, timeout_ms=timeout_ms)
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            raise TryAgain(f"{leader} is not the active controller")
        if answer.error_code != ErrorCode.NONE:
            # The two nodes disagree: the client cannot change that.
            error = ErrorCode.of(answer.error_code)
            raise ControllerUnavailable(
                f"{leader} refuses what is forwarded: {error.name}",
                ErrorCode.UNSUPPORTED_VERSION
                if error is ErrorCode.UNSUPPORTED_VERSION
                else ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        frame = enveloped_response(answer, client.correlation_id)
        if body is not None and not may_throttle(request.API_KEY, api_version, frame):
            return ControllerAnswer(frame, answer.committed_end_offset)
        _, response = await self._offload(decode_response, request.API_KEY, api_version, frame)
        return ControllerAnswer(response, answer.committed_end_offset)
