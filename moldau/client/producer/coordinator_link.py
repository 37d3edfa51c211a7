"""Sends a producer's requests to their coordinators.

Owns which broker coordinates the transactional id and each group, and the choice of the version
that can express a request. Must not know what requests mean, or retry. Invariant: a request whose
`ask` raises `NotSent` has not been sent; after `AnswerLost` it may have been served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from moldau.client.cluster.cluster_client import ClusterClient, version_of
from moldau.client.cluster.coordinators import Coordinators, KeyType
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.errors import KafkaError, NoBrokerAvailable
from moldau.client.producer.core.transaction_manager import CoordinatorFeatures
from moldau.client.producer.core.transaction_requests import Ask, Destination
from moldau.protocol.api_keys import ApiKey
from moldau.runtime.connection import Connection, UnsupportedByPeer

TRANSACTION_VERSION: Final = "transaction.version"

_KEY_TYPES: Final = {
    Destination.TRANSACTION_COORDINATOR: KeyType.TRANSACTION,
    Destination.GROUP_COORDINATOR: KeyType.GROUP,
}


class NotSent(Exception):
    """The broker cannot be reached now; the request has not been sent."""


class AnswerLost(Exception):
    """The connection ended before the answer; the request may have been served."""


class CannotSay(Exception):
    """The broker serves no version that can express the request."""


OnSending = Callable[[CoordinatorFeatures | None], None]


class CoordinatorLink:
    """Requests to the coordinators of one producer.

    Args:
        client: opens connections and finds coordinators, each within its own time limits.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._coordinators = Coordinators(client)
        self._known: dict[tuple[KeyType, str], int] = {}

    def forget(self, ask: Ask) -> None:
        key_type = _KEY_TYPES.get(ask.destination)
        if key_type is not None:
            self._known.pop((key_type, ask.key), None)

    async def ask(self, ask: Ask, sending: OnSending) -> Any:
        """Send a request and return the response. `sending` is called just before, with the
        capabilities of the broker if it is the transaction coordinator. Raises: NotSent,
        AnswerLost, worth another try; CannotSay when the broker is too old, or too new; KafkaError
        when the coordinator cannot be found or reached, by a fault that is not passing.
        """
        key_type = _KEY_TYPES.get(ask.destination)
        try:
            if key_type is None:
                connection = await self._client.any_connection()
            else:
                connection = await self._coordinator(key_type, ask.key)
        except PASSING_FAULTS as fault:
            self.forget(ask)
            raise NotSent(describe_fault(fault)) from fault
        try:
            versions = ask.lowest_version, ask.highest_version
            version = version_of(connection, type(ask.request), versions)
        except UnsupportedByPeer as error:
            raise CannotSay(f"{ask.kind.value}: {error}") from None
        sending(features_of(connection) if key_type is KeyType.TRANSACTION else None)
        try:
            response = await connection.send(ask.request, api_version=version)
        except PASSING_FAULTS as fault:
            raise AnswerLost(describe_fault(fault)) from fault
        node_id = None if key_type is None else self._known.get((key_type, ask.key))
        if response.throttle_time_ms > 0 and node_id is not None:
            self._client.throttled(node_id, response.throttle_time_ms, "coordinator")
        return response

    async def features(self, transactional_id: str) -> CoordinatorFeatures:
        """The capabilities of the coordinator. Raises: NotSent, KafkaError as `ask`."""
        try:
            connection = await self._coordinator(KeyType.TRANSACTION, transactional_id)
        except PASSING_FAULTS as fault:
            raise NotSent(describe_fault(fault)) from fault
        return features_of(connection)

    def forget_coordinator(self, transactional_id: str) -> None:
        self._known.pop((KeyType.TRANSACTION, transactional_id), None)

    async def _coordinator(self, key_type: KeyType, key: str) -> Connection:
        node_id = self._known.get((key_type, key))
        if node_id is None:
            found = (await self._coordinators.find(key_type, [key]))[key]
            if isinstance(found, KafkaError):
                if found.retriable:
                    raise NoBrokerAvailable(str(found)) from found
                raise found
            self._client.metadata.learn_broker(found)
            node_id = self._known[key_type, key] = found.node_id
        return await self._client.connection(node_id, purpose="coordinator")


def features_of(connection: Connection) -> CoordinatorFeatures:
    """The broker's capabilities from the negotiation of versions (KIP-584)."""
    served = connection.versions.get(ApiKey.INIT_PRODUCER_ID)
    answer = connection.api_versions
    level = 1
    features_epoch = -1
    if answer is not None:
        features_epoch = answer.finalized_features_epoch
        for feature in answer.finalized_features:
            if feature.name == TRANSACTION_VERSION:
                level = feature.max_version_level
    return CoordinatorFeatures(-1 if served is None else served[1], features_epoch, level)
