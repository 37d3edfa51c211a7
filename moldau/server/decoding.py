"""Decoding requests that may be large: in slices of the loop, within budgets, rights first.

Owns the memory that decoded requests take: what one may take (by the row of its API), and all of
them together (`moldau.decoded.max.bytes`), which principals share. Must not decide about a request:
a sender without the right that its API needs is only given less room to name what it asks for.
Invariants: what a request may take is reserved before it is decoded, and held until it is answered;
what is refused has never taken more.

A small request is not counted: it is decoded at once, and takes AT_ONCE_BYTES * MAX_GROWTH.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from sys import getrefcount
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from moldau.protocol.access_control import CLUSTER_RESOURCE_NAME, Operation, ResourceType
from moldau.protocol.api_keys import ApiKey
from moldau.runtime.slices import LoopSlices
from moldau.server.fair_shares import FairShares
from moldau.server.request import Decoded, TooLarge, taken_apart
from moldau.server.standard_authorizer import IMPLIED

if TYPE_CHECKING:
    from moldau.protocol.schema import Message
    from moldau.runtime.clock import Clock
    from moldau.server.request import RequestContext, Sender

T = TypeVar("T")

Steps = Generator[tuple["Message", int], None, T]
"""As `Message.decode_in_steps`, with another result."""

SCALAR_BYTES: Final = 1024 * 1024
"""What a request of an API may take, decoded, that names one thing or a few."""

LIST_BYTES: Final = 64 * 1024 * 1024
"""What a request that names many things may take: those of 100,000 to 400,000 partitions."""

BULK_BYTES: Final = 128 * 1024 * 1024
"""What a request may take that followers and nodes send for all partitions they have."""

REFUSED_BYTES: Final = 1024 * 1024
"""What a request may take whose sender lacks the right that its API needs: enough to be answered,
thing by thing, if it names a few thousand.
"""

MAX_GROWTH: Final = 64
"""How many bytes of memory one byte of a request becomes at most (tests ask every API)."""

DEFAULT_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""What all requests in work that are not small take together (`moldau.decoded.max.bytes`)."""

MAX_IN_SLICES: Final = 2
"""How many requests are worked on in slices at once: each holds the loop for SLICE_MS between two
looks at the sockets. Further ones wait for their principal's turn.
"""


class Permission(NamedTuple):
    """A right: on the cluster, on what the message's field names, or on any resource of the type.

    Attributes:
        field: of the message, where the version has it before its first array; None for any.
    """

    operation: Operation
    resource_type: ResourceType
    field: str | None = None

    def has(self, sender: Sender, message: Message) -> bool:
        """Whether the sender has it. Nothing is logged: the handler asks again."""
        authorizer, who = sender.authorizer, (sender.principal, sender.client_host)
        kind = self.resource_type
        if kind is ResourceType.CLUSTER:
            return authorizer.authorize(*who, self.operation, kind, CLUSTER_RESOURCE_NAME)
        name = None if self.field is None else getattr(message, self.field, None)
        if name:
            return authorizer.authorize(*who, self.operation, kind, name)
        implying = (each for each, implied in IMPLIED.items() if implied & 1 << self.operation)
        return any(
            authorizer.authorize_by_resource_type(*who, Operation(operation), kind)
            for operation in (self.operation, *implying)
        )


class Budget(NamedTuple):
    """What a row of the table says of the decoding of its API's requests.

    Attributes:
        max_bytes: of memory, for one request.
        permissions: one of them is needed for any answer but refusals; none are asked for without.
    """

    max_bytes: int = LIST_BYTES
    permissions: tuple[Permission, ...] = ()


SCALARS: Final = Budget(SCALAR_BYTES)


def needs(*permissions: Permission, max_bytes: int = LIST_BYTES) -> Budget:
    """The budget of an API for which a sender needs one of these rights."""
    return Budget(max_bytes, permissions)


def on_cluster(operation: Operation) -> Permission:
    return Permission(operation, ResourceType.CLUSTER)


def on_topics(operation: Operation) -> Permission:
    return Permission(operation, ResourceType.TOPIC)


def on_groups(operation: Operation, field: str | None = None) -> Permission:
    return Permission(operation, ResourceType.GROUP, field)


def on_transactions(operation: Operation, field: str | None = None) -> Permission:
    return Permission(operation, ResourceType.TRANSACTIONAL_ID, field)


def on_configs(operation: Operation) -> Budget:
    """The budget for `operation` on what has a configuration."""
    return needs(on_topics(operation), on_cluster(operation), on_groups(operation))


_NAMED_TWICE: Final = 3
"""What `getrefcount` says of an object that a list and a local variable name."""


class Decoding:
    """The decoding of one router's requests."""

    def __init__(self, clock: Clock, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._clock = clock
        self.memory = FairShares(memory_bytes)
        self.turns = FairShares(MAX_IN_SLICES)

    async def decode(
        self, party: str, context: RequestContext, message_class: type[Message], budget: Budget
    ) -> Decoded:
        """A large request's message, decoded when its party's turn has come; the caller releases
        what it gets.

        Raises:
            RemoteProtocolError: it is malformed.
            TooLarge: it takes more than it may.
        """
        request = context.request
        limit_bytes = min(budget.max_bytes, request.size_bytes * MAX_GROWTH, self.memory.capacity)
        if request.size_bytes > limit_bytes and request.api_key != ApiKey.PRODUCE:
            raise TooLarge(f"it takes more than {limit_bytes} bytes")
        await self.memory.taken(party, limit_bytes)
        decoded = Decoded(self.memory, self.free, party, limit_bytes)
        try:
            async with self.turns.share(party):
                steps = message_class.decode_in_steps(request.body, request.api_version)
                message, size_bytes = next(steps)
                decoded.use(message, size_bytes)
                may = budget.permissions
                if may and not any(each.has(context, message) for each in may):
                    decoded.limit(REFUSED_BYTES)
                await self.take(decoded, steps)
        except BaseException:
            decoded.release()
            raise
        decoded.keep()
        return decoded

    async def take(self, decoded: Decoded, steps: Steps[T]) -> T:
        """The result of steps that use memory. Raises TooLarge, and what the steps do."""
        slices = LoopSlices(self._clock)
        while True:
            try:
                message, size_bytes = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            decoded.use(message, size_bytes)
            if slices.is_over:
                await slices.next()

    def free(self, owned: list[Message]) -> None:
        """Take a message apart that nothing else has, as long as a slice lasts, and go on later."""
        message = owned.pop()
        if getrefcount(message) == _NAMED_TWICE - 1:
            self._go_on(taken_apart(message))

    def _go_on(self, steps: Iterator[None]) -> None:
        slices = LoopSlices(self._clock)
        for _ in steps:
            if slices.is_over:
                asyncio.get_running_loop().call_soon(self._go_on, steps)
                return
