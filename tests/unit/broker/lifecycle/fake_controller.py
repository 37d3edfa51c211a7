"""A controller on loopback that says what a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from moldau.metadata.steps import at_once
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.envelope import decode_envelope, encode_enveloped_response
from moldau.protocol.error_responses import error_response
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p18_api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.messages.p58_envelope import (
    UNKNOWN_END_OFFSET,
    EnvelopeRequest,
    EnvelopeResponse,
)
from moldau.protocol.registry import request_class
from moldau.protocol.schema import Message
from moldau.runtime.clock import SystemClock
from moldau.runtime.leader_link import LeaderAddress
from moldau.server.apis import FORWARDABLE_APIS
from moldau.server.request import Request
from moldau.server.server import ListenerSpec, Server

Answer = Callable[[Message], Message | None]

SERVED = {
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.ENVELOPE: (0, 0),
    ApiKey.BROKER_REGISTRATION: (0, 4),
    ApiKey.BROKER_HEARTBEAT: (0, 2),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0),
}


class FakeController:
    """`answer` gets each request, forwarded ones unpacked, and returns the response; None keeps
    silent. `mode` "close" ends the connection instead, "garbage" answers with bytes that are none.
    """

    def __init__(self, node_id: int, answer: Answer | None = None) -> None:
        self.node_id = node_id
        self.answer: Answer = answer or (
            lambda request: error_response(request, ErrorCode.NONE, "")
        )
        self.served = dict(SERVED)
        self.mode = "answer"
        self.envelope_error = ErrorCode.NONE
        self.committed_end_offset = UNKNOWN_END_OFFSET
        self.asked: list[Message] = []
        self.forwarded: list[tuple[str, str, str | None, int]] = []
        self.arrived = asyncio.Event()
        self._server = Server(self._handle, clock=SystemClock())

    async def start(self) -> LeaderAddress:
        await self._server.start([ListenerSpec("CONTROLLER", "127.0.0.1", 0)])
        return self.address

    @property
    def address(self) -> LeaderAddress:
        return LeaderAddress(self.node_id, "127.0.0.1", self._server.port("CONTROLLER"))

    @property
    def connection_count(self) -> int:
        return len(self._server.connections)

    async def close(self) -> None:
        await self._server.close(0)

    def not_controller(self) -> None:
        """From now on this node is a standby."""
        self.answer = lambda request: error_response(request, ErrorCode.NOT_CONTROLLER, "standby")
        self.envelope_error = ErrorCode.NOT_CONTROLLER

    def _handle(self, request: Request) -> None:
        if request.api_key == ApiKey.API_VERSIONS:
            keys = [
                ApiVersion(api_key=key, min_version=lowest, max_version=highest)
                for key, (lowest, highest) in self.served.items()
            ]
            request.respond(ApiVersionsResponse(api_keys=keys))
            return
        kind = request_class(request.api_key)
        message: Any = kind.decode(request.body, request.api_version)[0]
        if isinstance(message, EnvelopeRequest):
            response = self._answer_envelope(message)
        else:
            response = self._answer(message)
        if self.mode == "close":
            request.close("as the test says")
        elif self.mode == "garbage":
            request.respond_parts([b"\0\0\0\x05", request.correlation_id.to_bytes(4, "big"), b"x"])
        elif response is not None:
            request.respond(response)

    def _answer(self, message: Message) -> Message | None:
        self.asked.append(message)
        self.arrived.set()
        return self.answer(message)

    def _answer_envelope(self, envelope: EnvelopeRequest) -> Message | None:
        principal, host, header, message, _by_token = at_once(
            decode_envelope(envelope, FORWARDABLE_APIS)
        )
        self.forwarded.append((principal, host, header.client_id, header.api_version))
        response = self._answer(message)
        if self.envelope_error is not ErrorCode.NONE:
            return EnvelopeResponse(error_code=self.envelope_error)
        if response is None:
            return None
        return encode_enveloped_response(
            response, header, committed_end_offset=self.committed_end_offset
        )
