"""A broker whose answers a test writes down: real sockets, real frames, no cluster behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.p03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.protocol.messages.p18_api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.registry import request_class
from moldau.protocol.schema import Message
from moldau.runtime.ports import Ports
from moldau.server.request import Request
from moldau.server.server import ListenerSpec, Server

NODE_ID = 7

Answer = Callable[[Message], Message | None]


class ScriptedBroker:
    """Answers ApiVersions and Metadata by itself, everything else from the script.

    An answer of None closes the connection instead; an API in `silent` gets none, nor does what
    comes behind it on the same connection.
    """

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.requests: list[Message] = []
        self.scripts: dict[ApiKey, deque[Answer]] = {}
        self.served: dict[ApiKey, tuple[int, int]] = {}
        self.silent: set[ApiKey] = set()
        ports = Ports.of_machine()
        self._server = Server(self._handle, network=ports.network, clock=ports.clock)

    def script(self, api_key: ApiKey, *answers: Answer) -> None:
        """Answer the next requests of one API with these, in order; the last one stays."""
        self.scripts[api_key] = deque(answers)

    @property
    def address(self) -> str:
        """host:port"""
        return f"127.0.0.1:{self._server.port('PLAINTEXT')}"

    def requests_of(self, kind: type[Message]) -> list[Message]:
        """What came of one kind."""
        return [request for request in self.requests if isinstance(request, kind)]

    async def __aenter__(self) -> Self:
        await self._server.start([ListenerSpec("PLAINTEXT", "127.0.0.1", 0)])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._server.close(graceful_ms=0)

    def metadata(self) -> MetadataResponse:
        """This broker as the whole cluster."""
        host, _, port = self.address.rpartition(":")
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=NODE_ID, host=host, port=int(port))],
            cluster_id="scripted",
            controller_id=NODE_ID,
            topics=[
                MetadataResponseTopic(
                    name=name,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index,
                            leader_id=NODE_ID,
                            leader_epoch=1,
                            replica_nodes=[NODE_ID],
                            isr_nodes=[NODE_ID],
                        )
                        for index in range(count)
                    ],
                )
                for name, count in self.topics.items()
            ],
        )

    def _handle(self, request: Request) -> None:
        api_key = ApiKey(request.api_key)
        message, _ = request_class(api_key).decode(request.body, request.api_version)
        self.requests.append(message)
        if api_key in self.silent:
            return
        answer = self._answer(api_key, message)
        if answer is None:
            request.close("as the script says")
        else:
            request.respond(answer)

    def _answer(self, api_key: ApiKey, message: Message) -> Message | None:
        answers = self.scripts.get(api_key)
        if answers:
            answer = answers.popleft() if len(answers) > 1 else answers[0]
            return answer(message)
        if api_key is ApiKey.API_VERSIONS:
            keys = self.served or {key: (0, 127) for key in ApiKey}
            return ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in keys.items()
                ]
            )
        assert api_key is ApiKey.METADATA, f"the script has no answer for {api_key.name}"
        return self.metadata()
