"""How the admin client asks: one node with retries, the leaders of partitions, every broker.

Owns the ways to ask and the errors of single items. Must not know what requests mean. Invariants: a
call that raises `TypeError` has sent nothing; where a call has an outcome per item, every item ends
with exactly one value or one error, independent of the others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeVar, Unpack

from moldau.client.cluster.cluster_client import ClusterClient, ClusterUser, Versions
from moldau.client.cluster.coordinators import CoordinatorCall, Coordinators
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.config.client import AdminConfig, ClientConfig
from moldau.client.config.keywords import AdminSettings
from moldau.client.errors import (
    BrokerError,
    KafkaError,
    NoBrokerAvailable,
    UnsupportedByBroker,
    error_for,
    raise_for,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import AnyRequest, Request, Response
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer
from moldau.runtime.ports import Ports

Key = TypeVar("Key")
Value = TypeVar("Value")

OPERATION_TIMEOUT_MS: Final = 30_000
"""How long a broker may work on one request."""

PARTITIONS_PER_REQUEST: Final = 500
"""How many partitions one response is about at most: each may have thousands of producers."""

MOVED: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    )
)
"""Answers of a broker that does not lead a partition (yet, or any more)."""


class AdminCalls(ClusterUser):
    """The client behind all calls of `Admin`, and the ways to ask.

    Each of its classes is a client by itself: a command that only asks about topics imports
    `TopicCalls` alone.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = (),
        *,
        config: ClientConfig | Mapping[str, object] | None = None,
        ports: Ports | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        resolved = AdminConfig.resolve(bootstrap_servers, config, settings)
        self._client = ClusterClient(resolved, ports=ports)
        self._client.gives_up_early = "retries" not in resolved.given
        self._coordinators = Coordinators(self._client)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()

    async def _ask_any(
        self, request: Request[Response], what: str, timeout_ms: float | None
    ) -> Response:
        """Ask any node, again after a passing error, and raise the error of a whole response."""

        async def attempt() -> Response:
            return _accepted(await self._client.ask_any(request), what)

        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def _ask_controller(
        self,
        request: Request[Response],
        what: str,
        timeout_ms: float | None,
        *,
        check: Callable[[Response], object] = lambda _: None,
        versions: Versions | None = None,
    ) -> Response:
        """As `_ask_any`, but ask the controller. `check` raises those errors of the entries that
        are to be retried, or to be the call's.
        """

        async def attempt() -> Response:
            response = await self._client.ask_controller(request, versions=versions)
            check(_accepted(response, what))
            return response

        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def _ask_every_broker(
        self,
        request: Request[Response],
        read: Callable[[int, Response], list[Value]],
        name: Callable[[Value], str],
        *,
        what: str,
        timeout_ms: float | None,
        versions: Versions | None = None,
    ) -> list[Value]:
        """The values of all brokers in the order of their names, each once: two brokers may have
        one that moves. In one go: what a broker that goes away had, others take over.

        Raises:
            UnsupportedByBroker: a broker serves none of `versions` (lowest, highest).
            KafkaError: a broker did not answer within the time.
        """
        client = self._client

        async def ask(broker_id: int) -> list[Value]:
            return read(broker_id, await client.ask_node(broker_id, request, versions=versions))

        async def attempt() -> list[Value]:
            await client.refresh_metadata([])
            lists = await asyncio.gather(*(ask(each) for each in sorted(client.metadata.brokers)))
            unique = {name(each): each for values in lists for each in values}
            return [unique[each] for each in sorted(unique)]

        return await client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def _ask_leaders(
        self,
        partitions: Collection[TopicPartition],
        request: Callable[[list[TopicPartition]], AnyRequest],
        read: Callable[[TopicPartition, Any], Value],
        *,
        what: str,
        timeout_ms: float | None,
    ) -> dict[TopicPartition, Value]:
        """Ask each leader for its partitions; `read` makes a value of each entry, or raises."""

        async def ask(leader_id: int, some: list[TopicPartition]) -> dict[TopicPartition, Value]:
            response = await self._client.ask_node(leader_id, request(some))
            return {each: read(each, entry) for each, entry in partition_entries(response.topics)}

        async def attempt() -> dict[TopicPartition, Value]:
            by_leader = await self._by_leader(partitions)
            return await gathered(ask(*group) for group in by_leader.items())

        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def _by_leader(
        self, partitions: Collection[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        metadata = await self._client.refresh_metadata(sorted({each.topic for each in partitions}))
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            if metadata.leader(*partition) is None:
                error = metadata.problem(*partition)
                if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    # Raised at once, although its code counts as retriable for producers.
                    raise error_for(error, None, f"topic {partition}", final=True)
            by_leader[await self._client.leader_of(*partition)].append(partition)
        return by_leader

    async def _try_leaders(
        self,
        partitions: Collection[TopicPartition],
        request: Callable[[list[TopicPartition]], AnyRequest],
        read: Callable[[Any], Value],
        *,
        what: str,
        timeout_ms: float | None,
        broker_id: int | None = None,
    ) -> dict[TopicPartition, Value | KafkaError]:
        """As `_ask_leaders`, but with an outcome for each partition. Leaders are followed as they
        move; a partition that does not exist or has no leader is an error at once. `broker_id`: ask
        this broker instead of the leaders.
        """
        outcome: dict[TopicPartition, Value | KafkaError] = {}
        passing: dict[TopicPartition, KafkaError] = {}

        async def ask(node_id: int, some: list[TopicPartition]) -> None:
            where = f"broker {node_id}"
            try:
                response = await self._client.ask_node(node_id, request(some))
            except UnsupportedByPeer as error:
                outcome.update(dict.fromkeys(some, UnsupportedByBroker(f"{where}: {error}")))
                return
            except PASSING_FAULTS as fault:
                problem = NoBrokerAvailable(f"{where}: {describe_fault(fault)}")
                passing.update(dict.fromkeys(some, problem))
                return
            entries = dict(partition_entries(response.topics))
            for partition in some:
                entry = entries.get(partition)
                code = ErrorCode.UNKNOWN_SERVER_ERROR if entry is None else entry.error_code
                if code == ErrorCode.NONE:
                    outcome[partition] = read(entry)
                    continue
                is_passing = ErrorCode.of(code) in MOVED
                message = getattr(entry, "error_message", None)
                (passing if is_passing else outcome)[partition] = error_for(
                    code, message, f"{what} {partition} on {where}", final=not is_passing
                )

        async def attempt() -> None:
            left = [partition for partition in partitions if partition not in outcome]
            passing.clear()
            groups = await self._leaders(left, outcome) if broker_id is None else {broker_id: left}
            await asyncio.gather(
                *(
                    ask(node_id, group[first : first + PARTITIONS_PER_REQUEST])
                    for node_id, group in groups.items()
                    for first in range(0, len(group), PARTITIONS_PER_REQUEST)
                )
            )
            if passing:
                raise next(iter(passing.values()))

        try:
            await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)
        except KafkaError as error:
            for partition in partitions:
                if partition not in outcome:
                    outcome[partition] = passing.get(partition, error)
        return {partition: outcome[partition] for partition in partitions}

    async def _leaders(
        self,
        partitions: Collection[TopicPartition],
        outcome: dict[TopicPartition, Value | KafkaError],
    ) -> dict[int, list[TopicPartition]]:
        """Partitions by leader; the errors of those without one go into the outcome."""
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        if partitions:
            await self._client.refresh_metadata(sorted({each.topic for each in partitions}))
        metadata = self._client.metadata
        for partition in partitions:
            leader_id = metadata.leader(*partition)
            if leader_id is not None:
                by_leader[leader_id].append(partition)
                continue
            problem = metadata.problem(*partition)
            outcome[partition] = error_for(problem, None, str(partition), final=True)
        return by_leader

    async def _try_items(
        self,
        call: CoordinatorCall[dict[Key, int]],
        group_id: str,
        items: Collection[Key],
        what: Callable[[Key], str],
        timeout_ms: float | None,
    ) -> dict[Key, KafkaError | None]:
        """Ask one group's coordinator about several items; None for each without an error."""
        answer = (await self._coordinators.ask(call, [group_id], timeout_ms=timeout_ms))[group_id]
        if isinstance(answer, KafkaError):
            return dict.fromkeys(items, answer)
        codes = {each: answer.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in items}
        return {
            each: None if code == ErrorCode.NONE else error_for(code, None, what(each), final=True)
            for each, code in codes.items()
        }


def check_several(*collections: object) -> None:
    """Refuse one name, or one partition (a named tuple), where a collection of them is needed.

    Both are iterable in Python: the topics named by `"qrs"` would be q, r and s.

    Raises:
        TypeError: an argument is not a collection; None passes, where it means everything.
    """
    for given in collections:
        is_named_tuple = isinstance(given, tuple) and hasattr(given, "_fields")
        if isinstance(given, str | bytes | bytearray) or is_named_tuple:
            raise TypeError(
                f"this call takes several, in a list or another collection: [{given!r}], "
                f"not {given!r}"
            )


def check_kind(given: Iterable[object], *kinds: type) -> None:
    """Refuse other objects than a call takes. Their values, such as a password, are not shown.

    Raises:
        TypeError: one is of none of the kinds.
    """
    for each in given:
        if not isinstance(each, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"this call takes {names} objects, not {type(each).__name__}")


def _accepted(response: Response, what: str) -> Response:
    """The response, unless it has its own error, beside those of its items."""
    error_code: int = getattr(response, "error_code", ErrorCode.NONE)
    raise_for(error_code, getattr(response, "error_message", None), what)
    return response


def problem_of(entry: Any, what: str, *, final: bool = False) -> BrokerError | None:
    """The error of a response's entry, if it has one."""
    if entry.error_code == ErrorCode.NONE:
        return None
    return error_for(entry.error_code, getattr(entry, "error_message", None), what, final=final)


def raise_any(entries: Iterable[Any], what: Callable[[Any], str]) -> None:
    """Raise the first error of a response's entries."""
    for entry in entries:
        raise_for(entry.error_code, entry.error_message, what(entry))


def raise_moved(entries: Iterable[Any], what: str) -> None:
    """Raise NOT_CONTROLLER, so that the whole request is retried."""
    for entry in entries:
        if entry.error_code == ErrorCode.NOT_CONTROLLER:
            raise error_for(entry.error_code, entry.error_message, what)


def partition_entries(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in topics:
        for entry in topic.partitions:
            yield TopicPartition(topic.name, entry.partition_index), entry


async def gathered(asks: Iterable[Awaitable[Mapping[Key, Value]]]) -> dict[Key, Value]:
    answers = await asyncio.gather(*asks)
    return {key: value for answer in answers for key, value in answer.items()}
