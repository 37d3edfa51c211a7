"""Asking the coordinators of groups and transactional ids, each for its own keys.

Owns which broker coordinates which key (many keys per request, KIP-699), and the loop that asks
again when a coordinator moves, loads or goes away. Must not know what requests mean. Invariant:
every key ends with exactly one value or one error, independent of the other keys.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from moldau.client.cluster.cluster_client import ClusterClient, Versions
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.cluster.metadata_cache import Broker
from moldau.client.errors import (
    BrokerError,
    KafkaError,
    NoBrokerAvailable,
    UnsupportedByBroker,
    error_for,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import Coordinator, FindCoordinatorRequest
from moldau.protocol.schema import AnyRequest
from moldau.runtime.connection import UnsupportedByPeer

Value = TypeVar("Value")

KEYS_PER_REQUEST: Final = 1_000
"""More keys than this go in several requests, so that no response grows without a limit."""

MANY_KEYS_VERSIONS: Final = (4, 6)
ONE_KEY_VERSIONS: Final = (1, 3)
"""Before version 4 a request has one key (Apache Kafka before 3.0)."""

MOVED: Final = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE))
"""The coordinator has to be looked for again."""

PASSING: Final = MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
}
"""Answers after which the same key is asked for again."""


class KeyType(IntEnum):
    """The kind of key that a coordinator is found by."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """A coordinator's answer about one key that is an error."""

    error_code: int
    error_message: str | None = None


LEFT_OUT: Final = Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator left it out")


@dataclass(frozen=True, slots=True)
class CoordinatorCall(Generic[Value]):
    """One call that goes to many coordinators: the request for some keys, in one of `versions`
    (None for all), and what `read` makes of an entry of its response that has no error. `what` is
    for errors: "describe group". `entries` are those of a response by key; None where a request
    names just one key, so that the response is its entry.
    """

    key_type: KeyType
    what: str
    request: Callable[[Sequence[str]], AnyRequest]
    read: Callable[[Any, Broker], Value | Refusal]
    entries: Callable[[Any], Iterable[tuple[str, Any]]] | None = None
    versions: Versions | None = None


class Coordinators:
    """The coordinators that one client knows. They are found again after NOT_COORDINATOR."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._known: dict[tuple[KeyType, str], Broker] = {}

    async def find(
        self, key_type: KeyType, keys: Iterable[str], *, timeout_ms: float | None = None
    ) -> dict[str, Broker | KafkaError]:
        """Find the coordinator of each key, also of known ones, or why there is none."""
        wanted = list(dict.fromkeys(keys))
        for key in wanted:
            self._known.pop((key_type, key), None)
        problems: dict[str, KafkaError] = {}

        async def attempt() -> None:
            await self._look_up(key_type, wanted, problems)
            passing = [each for each in problems.values() if each.retriable]
            if passing:
                raise passing[0]

        try:
            await self._client.retry(attempt, what="find coordinator", timeout_ms=timeout_ms)
        except KafkaError as error:
            for key in wanted:
                problems.setdefault(key, error)
        return {key: self._known.get((key_type, key)) or problems[key] for key in wanted}

    async def ask(
        self, call: CoordinatorCall[Value], keys: Iterable[str], *, timeout_ms: float | None = None
    ) -> dict[str, Value | KafkaError]:
        """Ask for every key until each has its answer or the time is over. A key's error is in the
        outcome and never raised.
        """
        wanted = list(dict.fromkeys(keys))
        outcome: dict[str, Value | KafkaError] = {}
        passing: dict[str, KafkaError] = {}

        async def attempt() -> None:
            left = [key for key in wanted if key not in outcome]
            problems: dict[str, KafkaError] = {}
            await self._look_up(call.key_type, left, problems)
            for key, problem in problems.items():
                (passing if problem.retriable else outcome)[key] = problem
            await self._ask_known(call, left, outcome, passing)
            still = [passing[key] for key in left if key not in outcome]
            if still:
                raise still[0]

        try:
            await self._client.retry(attempt, what=call.what, timeout_ms=timeout_ms)
        except KafkaError as error:
            for key in wanted:
                if key not in outcome:
                    outcome[key] = passing.get(key, error)
        return {key: outcome[key] for key in wanted}

    async def _look_up(
        self, key_type: KeyType, keys: Sequence[str], problems: dict[str, KafkaError]
    ) -> None:
        problems.clear()
        unknown = [key for key in keys if (key_type, key) not in self._known]
        for first in range(0, len(unknown), KEYS_PER_REQUEST):
            some = unknown[first : first + KEYS_PER_REQUEST]
            for each in await self._locate(key_type, some):
                if each.error_code == ErrorCode.NONE:
                    self._known[key_type, each.key] = Broker(
                        each.node_id, each.host, each.port, None
                    )
                else:
                    problems[each.key] = error_for(
                        each.error_code, each.error_message, f"coordinator of {each.key}"
                    )
            for key in some:
                if (key_type, key) not in self._known and key not in problems:
                    problems[key] = error_for(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE, None, f"coordinator of {key}"
                    )
        missing = self._client.missing_coordinator
        for problem in problems.values():
            if problem.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                missing.note(str(problem))
                return
        if unknown and not problems:
            missing.end("the coordinator is found")

    async def _locate(self, key_type: KeyType, keys: Sequence[str]) -> list[Coordinator]:
        try:
            response = await self._client.ask_any(
                FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys)),
                versions=MANY_KEYS_VERSIONS,
            )
        except UnsupportedByPeer:
            return [await self._locate_one(key_type, key) for key in keys]
        return list(response.coordinators)

    async def _locate_one(self, key_type: KeyType, key: str) -> Coordinator:
        response = await self._client.ask_any(
            FindCoordinatorRequest(key_type=key_type, key=key), versions=ONE_KEY_VERSIONS
        )
        return Coordinator(
            key=key,
            node_id=response.node_id,
            host=response.host,
            port=response.port,
            error_code=response.error_code,
            error_message=response.error_message,
        )

    async def _ask_known(
        self,
        call: CoordinatorCall[Value],
        keys: Sequence[str],
        outcome: dict[str, Value | KafkaError],
        passing: dict[str, KafkaError],
    ) -> None:
        by_broker: defaultdict[Broker, list[str]] = defaultdict(list)
        for key in keys:
            broker = self._known.get((call.key_type, key))
            if broker is not None and key not in outcome:
                by_broker[broker].append(key)

        async def ask_broker(broker: Broker, its_keys: list[str]) -> None:
            most = 1 if call.entries is None else KEYS_PER_REQUEST
            for first in range(0, len(its_keys), most):
                some = its_keys[first : first + most]
                await self._ask_one(call, broker, some, outcome, passing)

        await asyncio.gather(*(ask_broker(*group) for group in by_broker.items()))

    async def _ask_one(
        self,
        call: CoordinatorCall[Value],
        broker: Broker,
        keys: list[str],
        outcome: dict[str, Value | KafkaError],
        passing: dict[str, KafkaError],
    ) -> None:
        where = f"{call.what}: broker {broker.node_id}"
        try:
            response = await self._client.ask_address(
                broker.host, broker.port, call.request(keys), versions=call.versions
            )
        except UnsupportedByPeer as error:
            outcome.update((key, UnsupportedByBroker(f"{where}: {error}")) for key in keys)
            return
        except PASSING_FAULTS as fault:
            for key in keys:
                self._known.pop((call.key_type, key), None)
                passing[key] = NoBrokerAvailable(f"{where}: {describe_fault(fault)}")
            return
        entries = {keys[0]: response} if call.entries is None else dict(call.entries(response))
        for key in keys:
            entry = entries.get(key, LEFT_OUT)
            code = getattr(entry, "error_code", ErrorCode.NONE)
            if code != ErrorCode.NONE:
                answer: Value | Refusal = Refusal(code, getattr(entry, "error_message", None))
            else:
                answer = call.read(entry, broker)
            if not isinstance(answer, Refusal):
                outcome[key] = answer
                continue
            code = ErrorCode.of(answer.error_code)
            if code in MOVED:
                self._known.pop((call.key_type, key), None)
            if code in PASSING:
                problem = error_for(answer.error_code, answer.error_message, f"{call.what} {key}")
                passing[key] = _Passing(str(problem), code=problem.code)
            else:
                outcome[key] = error_for(
                    answer.error_code, answer.error_message, f"{call.what} {key}", final=True
                )


class _Passing(BrokerError):
    """An answer after which the key is asked for again, until the time is over: retriable, although
    its code may not be so for producers and consumers.
    """

    @property
    def retriable(self) -> bool:
        return True
