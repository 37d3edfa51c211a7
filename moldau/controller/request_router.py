"""From a frame on the controller listener to the response, Envelopes included.

Owns the check of API and version, the decoding, the tasks of requests under way and their limits.
Must not: decide what a request does. Invariant: whatever a peer sends, the worst that happens is
that its own connection is closed; and requests of the quorum and of brokers never wait behind those
of clients.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

from moldau.controller.apis import CONTROLLER_APIS, QUORUM_APIS, ControllerApis
from moldau.controller.long_work import has_many_elements
from moldau.controller.request_context import ControllerRequestContext
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.envelope import (
    EnvelopeRefused,
    ForwardedRequest,
    decode_envelope,
    encode_enveloped_response,
)
from moldau.protocol.error_responses import has_error
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.headers import RequestHeader
from moldau.protocol.messages.p18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from moldau.protocol.messages.p58_envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.registry import request_class
from moldau.protocol.schema import Message
from moldau.server.authorizer import AllowAllAuthorizer, Authorizer, Operation
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.server.request import Request

MAX_RUNNING_CLIENT_REQUESTS: Final = 64
"""Requests of clients, forwarded ones included, worked on at once; further ones wait in order."""

MAX_WAITING_CLIENT_REQUESTS: Final = 10_000
"""Requests of clients that wait their turn; the connection of one more is closed."""

MAX_RUNNING_PEER_REQUESTS: Final = 10_000
"""Requests of the quorum and of brokers under way at once, waiting fetches included; the connection
of one more is closed.
"""

MAX_EARLY_REQUESTS: Final = 1_000
"""Requests that may come before the log is open."""

PEER_APIS: Final = (QUORUM_APIS - {ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER}) | {
    ApiKey.ALTER_PARTITION,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.CONTROLLER_REGISTRATION,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
}

_CLIENT_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,254}[a-zA-Z0-9])?\Z")
_FIRST_VERSION_WITH_SOFTWARE: Final = 3


def _versions(api_key: ApiKey) -> tuple[int, int]:
    messages = request_class(api_key)
    return messages.MIN_VERSION, messages.LATEST_STABLE_VERSION


SERVED: Final[dict[ApiKey, tuple[int, int]]] = {
    api_key: _versions(api_key)
    for api_key in sorted(CONTROLLER_APIS | {ApiKey.API_VERSIONS, ApiKey.ENVELOPE})
}
"""What ApiVersions tells, and nothing else is served: the lowest and highest version by API."""


class _Call(NamedTuple):
    """`inner` is what is in an Envelope, if that was looked at already."""

    apis: ControllerApis
    request: Request
    message: Message
    context: ControllerRequestContext
    inner: ForwardedRequest | EnvelopeRefused | None = None


class ControllerRequestRouter:
    """Calls the right handler for every request of the controller's listeners, once `open`.

    Args:
        on_fault: told of an exception that no handler expected; decides if the node goes on.
    """

    def __init__(
        self,
        *,
        on_fault: Callable[[BaseException], None],
        authorizer: Authorizer | None = None,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self._apis: ControllerApis | None = None
        self._early: deque[Request] = deque()
        self._on_fault = on_fault
        self._watchdog = watchdog
        self._authorizer = authorizer or AllowAllAuthorizer()
        self._peer_calls: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._client_calls: dict[asyncio.Task[None], None] = {}
        self._waiting: deque[_Call] = deque()

    def open(self, apis: ControllerApis) -> None:
        """Route what came early, in its order, and everything from now on."""
        self._apis = apis
        while self._early:
            request = self._early.popleft()
            if request.is_connection_lost:
                request.discard()
            else:
                self(request)

    def __call__(self, request: Request) -> None:
        """Route one request; the `runtime.server` calls this on the quorum's loop."""
        apis = self._apis
        if apis is None:
            if len(self._early) < MAX_EARLY_REQUESTS:
                self._early.append(request)
            else:
                request.close("the controller is starting, and too many requests wait already")
            return
        served = SERVED.get(request.api_key)  # type: ignore[call-overload]
        if served is None:
            request.close(f"API {request.api_key} is not served by controllers")
            return
        api_version = request.api_version
        if not served[0] <= api_version <= served[1]:
            self._refuse_version(request, served)
            return
        message_class = request_class(request.api_key)
        if request.is_large:
            request.connection.suspend()
            request.connection.start(self._decode(apis, message_class, request))
            return
        try:
            message, _ = message_class.decode(request.body, api_version)
        except RemoteProtocolError as error:
            request.close(f"{message_class.__name__} v{api_version} is malformed: {error}")
            return
        self._serve(apis, request, message)

    async def _decode(
        self, apis: ControllerApis, message_class: type[Message], request: Request
    ) -> None:
        inner = None
        try:
            message = await request.decode(message_class)
            if isinstance(message, EnvelopeRequest):
                inner = await request.connection.offload(_opened, message)
            self._serve(apis, request, message, inner)
        except RemoteProtocolError as error:
            request.close(f"{message_class.__name__} v{request.api_version} is malformed: {error}")
        finally:
            request.connection.proceed()

    def _serve(
        self,
        apis: ControllerApis,
        request: Request,
        message: Message,
        inner: ForwardedRequest | EnvelopeRefused | None = None,
    ) -> None:
        if isinstance(message, ApiVersionsRequest):
            self._answer_api_versions(apis, request, message)
            return
        connection = request.connection
        context = ControllerRequestContext(
            connection.principal,
            request.client_id,
            client_host=connection.client_host,
            api_version=request.api_version,
            listener_name=connection.listener_name,
            authorizer=self._authorizer,
        )
        call = _Call(apis, request, message, context, inner)
        if request.api_key in PEER_APIS:
            if len(self._peer_calls) < MAX_RUNNING_PEER_REQUESTS:
                self._start(self._peer_calls, call)
            else:
                request.close(f"{MAX_RUNNING_PEER_REQUESTS} requests are under way already")
        elif len(self._client_calls) < MAX_RUNNING_CLIENT_REQUESTS:
            self._start(self._client_calls, call)
        elif len(self._waiting) < MAX_WAITING_CLIENT_REQUESTS:
            self._waiting.append(call)
        else:
            request.close(f"{MAX_WAITING_CLIENT_REQUESTS} requests of clients already wait")

    @property
    def request_count(self) -> int:
        """Requests that run or wait."""
        running = len(self._peer_calls) + len(self._client_calls)
        return len(self._early) + running + len(self._waiting)

    async def close(self) -> None:
        """Drop the requests that wait, and end those that run: waiting fetches may wait long."""
        while self._early:
            self._early.popleft().close("the controller is shutting down")
        while self._waiting:
            self._waiting.popleft().request.close("the controller is shutting down")
        running = [*self._peer_calls, *self._client_calls]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # -- ApiVersions -----------------------------------------------------------------------------

    def _refuse_version(self, request: Request, served: tuple[int, int]) -> None:
        """An unknown ApiVersions version gets a v0 body that names the known ones (KIP-511)."""
        if request.api_key != ApiKey.API_VERSIONS:
            request.close(
                f"version {request.api_version} of API {request.api_key} is not served here "
                f"(served: {served[0]} to {served[1]})"
            )
            return
        known = ApiVersion(
            api_key=ApiKey.API_VERSIONS, min_version=served[0], max_version=served[1]
        )
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[known])
        request.respond(response, api_version=0)

    @staticmethod
    def _answer_api_versions(
        apis: ControllerApis, request: Request, message: ApiVersionsRequest
    ) -> None:
        if request.api_version >= _FIRST_VERSION_WITH_SOFTWARE:
            for text in (message.client_software_name, message.client_software_version):
                if _CLIENT_SOFTWARE.match(text) is None:
                    request.respond(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
                    return
            request.connection.client_software_name = message.client_software_name
            request.connection.client_software_version = message.client_software_version
        request.respond(apis.descriptions.api_versions(SERVED, request.api_version))

    # -- everything else -------------------------------------------------------------------------

    def _start(self, calls: dict[asyncio.Task[None], None], call: _Call) -> None:
        running = self._run(call)
        if self._watchdog is not None:
            running = self._watchdog.watch(call.request, running)
        task = asyncio.get_running_loop().create_task(running)
        calls[task] = None
        task.add_done_callback(partial(self._finished, calls, call.request))

    async def _run(self, call: _Call) -> None:
        apis, request, message, context, _ = call
        answer: Coroutine[Any, Any, Message]
        if isinstance(message, EnvelopeRequest):
            answer = self._answer_envelope(call, message)
        else:
            answer = apis.handle(message, context)
        request.respond(await answer)

    def _finished(
        self, calls: dict[asyncio.Task[None], None], request: Request, task: asyncio.Task[None]
    ) -> None:
        del calls[task]
        if not request.is_answered:
            request.close("the request was not answered by the controller")
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._on_fault(error)
        while self._waiting and len(self._client_calls) < MAX_RUNNING_CLIENT_REQUESTS:
            self._start(self._client_calls, self._waiting.popleft())

    async def _answer_envelope(self, call: _Call, envelope: EnvelopeRequest) -> EnvelopeResponse:
        """Serve the embedded request as if its client had sent it here (KIP-590).

        An error of the Envelope itself is for the broker: NOT_CONTROLLER makes it look for the
        active controller and try again, whatever part of the inner response says it.
        """
        apis, request, _, outer, inner = call
        if not outer.authorized_cluster(Operation.CLUSTER_ACTION):
            return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        forwarded = _opened(envelope) if inner is None else inner
        if isinstance(forwarded, EnvelopeRefused):
            return EnvelopeResponse(error_code=forwarded.error)
        try:
            response = await self._serve_forwarded(apis, forwarded, outer)
        except EnvelopeRefused as refusal:
            return EnvelopeResponse(error_code=refusal.error)
        closed = partial(_closed, response, forwarded.header, apis.committed_end_offset)
        if has_many_elements(response):
            return await request.connection.offload(closed)  # type: ignore[no-any-return]
        return closed()

    @staticmethod
    async def _serve_forwarded(
        apis: ControllerApis, forwarded: ForwardedRequest, outer: ControllerRequestContext
    ) -> Message:
        header = forwarded.header
        lowest, highest = SERVED.get(ApiKey(header.api_key), (0, -1))
        if not lowest <= header.api_version <= highest:
            raise EnvelopeRefused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"version {header.api_version} of API {header.api_key} is not served here",
            )
        context = ControllerRequestContext(
            forwarded.principal,
            header.client_id,
            client_host=forwarded.client_host,
            api_version=header.api_version,
            listener_name=outer.listener_name,
            authorizer=outer.authorizer,
        )
        response: Message = await apis.handle(forwarded.message, context)
        return response


def _opened(envelope: EnvelopeRequest) -> ForwardedRequest | EnvelopeRefused:
    """What is in an Envelope, or what is wrong with it."""
    try:
        return decode_envelope(envelope)
    except EnvelopeRefused as refusal:
        return refusal


def _closed(
    response: Message, header: RequestHeader, committed_end_offset: int
) -> EnvelopeResponse:
    """An embedded request's response in an Envelope's."""
    if has_error(response, ErrorCode.NOT_CONTROLLER):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    return encode_enveloped_response(response, header, committed_end_offset=committed_end_offset)
