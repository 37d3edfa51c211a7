"""A way to the controller at whose other end a test sits."""

from __future__ import annotations

import asyncio
from typing import Any

from moldau.broker.lifecycle.controller_channel import DEFAULT_TIMEOUT_MS
from moldau.protocol.schema import Message
from tests.kit.waiting import until_async


class Sent:
    """One request; the test answers it, or lets it fail, when it likes."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, response: Message) -> None:
        self.future.set_result(response)

    def fail(self, error: Exception) -> None:
        self.future.set_exception(error)


class ScriptedChannel:
    """A ControllerChannel. Requests wait in `sent` until the test answers them."""

    active_controller_id = 103

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.all_requests: list[Any] = []

    async def send(
        self, request: Message, principal: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> Any:
        sent = Sent(request)
        self.sent.append(sent)
        self.all_requests.append(request)
        return await sent.future

    async def next(self) -> Sent:
        """The oldest request that was not looked at yet."""

        async def is_there() -> bool:
            return bool(self.sent)

        await until_async(is_there, what="a request to the controller", deadline_s=10)
        return self.sent.pop(0)
