"""How a consumer's requests reach its group's coordinator.

Owns which broker that is, as last heard. Must not know what requests mean, or retry. Invariants: a
caller that waits may be cancelled; a request whose answer was lost may have been served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.client.cluster.cluster_client import ClusterClient, version_of
from moldau.client.cluster.connections import Purpose
from moldau.client.cluster.coordinators import Coordinators, KeyType
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.errors import KafkaError, UnsupportedByBroker
from moldau.protocol.errors import LocalProtocolError
from moldau.protocol.schema import Request, Response
from moldau.runtime.shared_work import outcome_of

MEMBERSHIP: Final[Purpose] = "coordinator"
"""The connection of JoinGroup, SyncGroup and heartbeats; a join may keep it busy for minutes."""

OFFSETS: Final[Purpose] = "data"
"""The connection of commits and of leaving, which must not wait behind a join."""


class AnswerLost(Exception):
    """The coordinator could not be reached, or did not answer; worth another try."""


class GroupLink:
    """Requests to the coordinator of one group."""

    def __init__(self, client: ClusterClient, group_id: str) -> None:
        self._client = client
        self.group_id: str = group_id
        self._coordinators = Coordinators(client)
        self._node_id: int | None = None
        self._finding: asyncio.Task[int] | None = None

    def forget(self) -> None:
        """Look the coordinator up again before the next request."""
        self._node_id = None

    async def ask(
        self,
        kind: type[Request[Response]],
        build: Callable[[int], Request[Response]],
        *,
        purpose: Purpose,
        versions: tuple[int, int] | None = None,
        timeout_ms: float | None = None,
    ) -> Response:
        """Send a request, which `build` makes in the version it is given, and return the response.
        `versions` are the lowest and the highest that can carry it, None for all; `timeout_ms` None
        is `request.timeout.ms`. Raises: AnswerLost, worth another try; UnsupportedByBroker when the
        broker is too old; KafkaError when the cluster does not tell the coordinator.
        """
        node_id = await self._coordinator()
        try:
            connection = await self._client.connection(node_id, purpose=purpose)
            allowed = versions or (kind.MIN_VERSION, kind.MAX_VERSION)
            version = version_of(connection, kind, allowed)
            response = await connection.send(
                build(version),
                api_version=version,
                timeout_ms=self._client.config.request_timeout_ms
                if timeout_ms is None
                else timeout_ms,
            )
        except PASSING_FAULTS as fault:
            if self._node_id == node_id:
                self._node_id = None
            raise AnswerLost(f"broker {node_id}: {describe_fault(fault)}") from fault
        except LocalProtocolError as error:
            what = kind.__name__.removesuffix("Request")
            raise UnsupportedByBroker(f"{what} of group {self.group_id}: {error}") from error
        throttle_time_ms: int = getattr(response, "throttle_time_ms", 0)
        if throttle_time_ms > 0:
            self._client.throttled(node_id, throttle_time_ms)
        return response

    def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()

    async def _coordinator(self) -> int:
        if self._node_id is not None:
            return self._node_id
        if self._finding is None:
            self._finding = asyncio.create_task(self._find())
            self._finding.add_done_callback(self._found)
        return await outcome_of(self._finding)

    def _found(self, task: asyncio.Task[int]) -> None:
        self._finding = None
        if not task.cancelled():
            task.exception()

    async def _find(self) -> int:
        outcome = await self._coordinators.find(
            KeyType.GROUP, [self.group_id], timeout_ms=self._client.config.request_timeout_ms
        )
        found = outcome[self.group_id]
        if isinstance(found, KafkaError):
            if found.retriable:
                raise AnswerLost(str(found)) from found
            raise found
        self._node_id = found.node_id
        return found.node_id
