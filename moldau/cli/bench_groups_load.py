"""The load of `moldau bench groups`: very many members in one group, who join, stay and leave.

Owns the phases, the clock and the figures. Must not print. Invariant: a rebalance is over when all
members are in the same round and every partition is owned by exactly one.
"""

from __future__ import annotations

import asyncio
import resource
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any, Final

from moldau.cli.bench_group_members import MEMBER_KINDS, GroupBook, Member
from moldau.client import Admin, ClientConfig, KeyType, NewTopic
from moldau.client.cluster.metadata_cache import Broker
from moldau.client.errors import KafkaError
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork

CONNECTS_AT_ONCE: Final = 50
SPARE_DESCRIPTORS: Final = 100
SETTLE_LIMIT_S: Final = 300.0
DEFAULT_HEARTBEAT_MS: Final = 3_000

CpuSeconds = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsPlan:
    """How much is measured; `protocol` is "classic" or "consumer". The heartbeat interval is for
    the classic one: with KIP-848 the broker says.
    """

    protocol: str
    member_count: int = 1_000
    partition_count: int = 1_000
    idle_seconds: float = 10.0
    heartbeat_ms: int = DEFAULT_HEARTBEAT_MS
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase took; `server_cpu_seconds` is None when nobody could look."""

    name: str
    seconds: float
    server_cpu_seconds: float | None
    client_cpu_seconds: float
    heartbeat_count: int

    def document(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            key: round(value, 3) if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


class GroupLoad:
    """One group in one protocol. Use `await GroupLoad.measure(…)`."""

    def __init__(
        self, plan: GroupsPlan, book: GroupBook, group_id: str, server_cpu: CpuSeconds | None
    ) -> None:
        self._plan = plan
        self._book = book
        self._group_id = group_id
        self._server_cpu = server_cpu
        self._members: list[Member] = []
        self._connections: list[Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.phases: list[Phase] = []

    @classmethod
    async def measure(
        cls, config: ClientConfig, plan: GroupsPlan, server_cpu: CpuSeconds | None = None
    ) -> list[Phase]:
        """Run all phases on a topic and in a group of their own. Raises: KafkaError, OSError"""
        _have_descriptors(plan.member_count)
        run_id = uuid.uuid4().hex[:12]
        topic, group_id = f"bench-groups-{run_id}", f"bench-groups-{run_id}"
        async with Admin(config=config) as admin:
            ids = await admin.create_topics(
                [NewTopic(topic, plan.partition_count, plan.replication_factor)]
            )
            try:
                # Waits until the coordinator has loaded; the group is not there yet.
                await admin.describe_groups([group_id])
                found = (await admin.find_coordinators(KeyType.GROUP, [group_id]))[group_id]
                if isinstance(found, KafkaError):
                    raise found
                book = GroupBook(topic, ids[topic], plan.partition_count, plan.heartbeat_ms / 1000)
                load = cls(plan, book, group_id, server_cpu)
                try:
                    await load._connect(config, found)
                    await load._run()
                finally:
                    await load._close()
                await admin.delete_groups([group_id])
            finally:
                await admin.delete_topics([topic])
        return load.phases

    async def _connect(self, config: ClientConfig, broker: Broker) -> None:
        """A connection for every member, one more for the one that comes later."""
        network, places = AsyncioNetwork(), asyncio.Semaphore(CONNECTS_AT_ONCE)

        async def connect() -> None:
            async with places:
                self._connections.append(
                    await Connection.connect(
                        network,
                        broker.host,
                        broker.port,
                        client_id=config.client_id,
                        request_timeout_ms=config.request_timeout_ms,
                    )
                )

        await asyncio.gather(*(connect() for _ in range(self._plan.member_count + 1)))
        kind = MEMBER_KINDS[self._plan.protocol]
        self._members = [
            kind(number, self._group_id, connection, self._book)
            for number, connection in enumerate(self._connections)
        ]

    async def _run(self) -> None:
        *first, late = self._members
        count = len(first)

        async def all_join() -> None:
            for member in first:
                self._start(member)
            await self._settled(-1, count)

        async def stay() -> None:
            await asyncio.wait([self._failed], timeout=self._plan.idle_seconds)

        async def one_joins() -> None:
            self._start(late)
            await self._settled(self._round(), count + 1)

        async def one_leaves() -> None:
            before = self._round()
            await first[0].leave()
            await self._settled(before, count)

        await self._phase("all join", all_join())
        await self._phase("all stay", stay())
        await self._phase("one joins", one_joins())
        await self._phase("one leaves", one_leaves())
        # Not a figure: a group that is deleted afterwards has to be empty.
        await asyncio.gather(*(member.leave() for member in self._members[1:]))

    def _round(self) -> int:
        return max(self._book.rounds.values())

    def _start(self, member: Member) -> None:
        task = asyncio.create_task(member.run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._failed.done():
            self._failed.set_exception(task.exception() or KafkaError("a member ended"))

    async def _settled(self, round_number: int, member_count: int) -> None:
        """Wait for a round of all members; a member's failure ends the wait."""
        waiting = asyncio.create_task(self._book.settled_after(round_number, member_count))
        try:
            done, _ = await asyncio.wait(
                [waiting, self._failed],
                timeout=SETTLE_LIMIT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waiting.cancel()
        if self._failed in done:
            self._failed.result()
        if not done:
            raise KafkaError(
                f"{self._group_id}: not settled in {SETTLE_LIMIT_S:.0f} s: "
                f"{len(self._book.rounds)} members, {self._book.owned_count} partitions owned"
            )

    async def _phase(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        server_begin = None if self._server_cpu is None else self._server_cpu()
        heartbeats = self._book.heartbeat_count
        begin, cpu_begin = time.perf_counter(), _cpu_seconds()
        await work
        seconds, cpu = time.perf_counter() - begin, _cpu_seconds() - cpu_begin
        server_cpu = None
        if self._server_cpu is not None and server_begin is not None:
            server_cpu = self._server_cpu() - server_begin
        self.phases.append(
            Phase(name, seconds, server_cpu, cpu, self._book.heartbeat_count - heartbeats)
        )

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failed.done():
            self._failed.exception()  # told already
        for connection in self._connections:
            connection.close()


def _have_descriptors(member_count: int) -> None:
    """Raise the limit of open files to what the members need. Raises: KafkaError"""
    needed = member_count + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise KafkaError(f"{member_count} members need {needed} open files, {hard} may be")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
