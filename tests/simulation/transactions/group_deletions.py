"""A client that deletes groups and offsets, whether they are used or not: the product's admin.

Owns: one `delete_groups` or `delete_group_offsets` after the other. Must not: wait for a group to
be empty. Invariants: what is said to be deleted is gone from the log, but for what was written
since; what a group uses is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.client import Admin
from moldau.client.errors import KafkaError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.runtime.ports import Ports
from tests.kit.seeds import Violation
from tests.simulation.transactions.faulty_clients import HOST, PASSING
from tests.simulation.transactions.transactional_producer import keep_open
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

REFUSED = frozenset(
    {
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


class Deleter:
    """See the module."""

    def __init__(self, world: TransactionWorld, random: Random, number: int) -> None:
        self.world = world
        self.process = Process(world.loop, f"{HOST}#{number}")
        self._admin = Admin(
            ",".join(f"{host}:{port}" for _, host, port in world.broker_addresses),
            ports=Ports(VirtualClock(world.loop), world.fabric.port_of(self.process, HOST), random),
            request_timeout_ms=1_500,
            default_api_timeout_ms=random.choice((2_000, 6_000)),
            reconnect_backoff_max_ms=300,
            socket_connection_setup_timeout_ms=800,
            retries=2**31 - 1,
        )
        keep_open(self._admin)

    async def delete_group(self, group: str) -> None:
        """Once. Raises Violation."""
        asked_at = self.world.loop.time()
        if await self._is_done(lambda: self._admin.delete_groups([group]), group, "delete group"):
            self.world.note(f"{group} is deleted")
            self.world.guard(self.world.data.group_deleted, group, asked_at)

    async def delete_offset(self, group: str, topic: str, index: int) -> None:
        """Once. Raises Violation."""
        asked_at, place = self.world.loop.time(), TopicPartition(topic, index)
        if await self._is_done(
            lambda: self._admin.delete_group_offsets(group, [place]), place, "delete offset"
        ):
            self.world.guard(self.world.data.offset_deleted, (group, topic, index), asked_at)

    async def _is_done(self, call: Callable[[], Awaitable[Any]], what: Any, name: str) -> bool:
        try:
            error = (await call())[what]
        except KafkaError as raised:
            error = raised
        if error is None:
            return True
        self.world.counts[f"{name} {error.code.name}"] += 1
        if error.code not in PASSING | REFUSED:
            self.world.guard(self._fail, f"{name}: {what}: {error!r}")
        return False

    def _fail(self, details: str) -> None:
        raise Violation("unexpected-error", f"{self.process.name}: {details}")
