"""The controller's requests: which there are, who may send them, how long they may take.

Owns: dispatch from an ApiKey to the controller or the quorum, and the permission each API needs.
Called in process by a broker of the same node, and by the controller listener. Must not: decide
anything about metadata. Invariant: every request gets a response of its own API, failures included;
clients' requests reach the controller in the order they came.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, Protocol

from moldau.controller import Controller, RequestFailed
from moldau.controller.descriptions import ClusterDescriptions
from moldau.controller.kraft_upgrade import (
    KraftUpgrade,
    names_kraft_version,
    update_with_kraft_version,
)
from moldau.controller.long_work import LongWork
from moldau.controller.request_context import ControllerRequestContext
from moldau.controller.resource_requests import FILTERS
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.error_responses import error_response, fit_version
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p57_update_features import UpdateFeaturesRequest
from moldau.protocol.schema import Message
from moldau.server.authorizer import Operation

DEFAULT_TIMEOUT_MS: Final = 30_000

ACTIVE_CONTROLLER_APIS: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_PARTITION,
        ApiKey.UPDATE_FEATURES,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.CONTROLLER_REGISTRATION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    }
)
"""Decided by the active controller; every other answers NOT_CONTROLLER."""

QUORUM_APIS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UPDATE_RAFT_VOTER,
    }
)
"""Answered by the quorum's own request handler."""

DESCRIBING_APIS: Final = frozenset({ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_CLUSTER})
"""Answered by any controller, from what it has replayed."""

CONTROLLER_APIS: Final = ACTIVE_CONTROLLER_APIS | QUORUM_APIS | DESCRIBING_APIS

CLUSTER_OPERATION: Final = {
    ApiKey.FETCH: Operation.CLUSTER_ACTION,
    ApiKey.VOTE: Operation.CLUSTER_ACTION,
    ApiKey.BEGIN_QUORUM_EPOCH: Operation.CLUSTER_ACTION,
    ApiKey.END_QUORUM_EPOCH: Operation.CLUSTER_ACTION,
    ApiKey.FETCH_SNAPSHOT: Operation.CLUSTER_ACTION,
    ApiKey.UPDATE_RAFT_VOTER: Operation.CLUSTER_ACTION,
    ApiKey.ALTER_PARTITION: Operation.CLUSTER_ACTION,
    ApiKey.BROKER_REGISTRATION: Operation.CLUSTER_ACTION,
    ApiKey.BROKER_HEARTBEAT: Operation.CLUSTER_ACTION,
    ApiKey.ALLOCATE_PRODUCER_IDS: Operation.CLUSTER_ACTION,
    ApiKey.CONTROLLER_REGISTRATION: Operation.CLUSTER_ACTION,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: Operation.CLUSTER_ACTION,
    ApiKey.DESCRIBE_QUORUM: Operation.DESCRIBE,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Operation.DESCRIBE,
    ApiKey.ELECT_LEADERS: Operation.ALTER,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Operation.ALTER,
    ApiKey.UPDATE_FEATURES: Operation.ALTER,
    ApiKey.UNREGISTER_BROKER: Operation.ALTER,
    ApiKey.ADD_RAFT_VOTER: Operation.ALTER,
    ApiKey.REMOVE_RAFT_VOTER: Operation.ALTER,
}
"""The permission on the cluster that an API needs; the others ask for each resource."""


class QuorumRequests(Protocol):
    """Answers QUORUM_APIS."""

    async def handle(self, request: Message, api_version: int, client_host: str) -> Message:
        """The response to `request`, now or when it is due (Fetch may wait)."""


class ControllerApis:
    """Answers requests on the quorum's loop.

    Args:
        quorum: answers what is about the quorum itself.
        descriptions: answers what any controller may tell.
        kraft_upgrade: raises the level of the quorum.
        work: how large requests and responses are worked on.
    """

    def __init__(
        self,
        controller: Controller,
        quorum: QuorumRequests,
        descriptions: ClusterDescriptions,
        *,
        kraft_upgrade: KraftUpgrade,
        work: LongWork,
    ) -> None:
        self._controller = controller
        self._quorum = quorum
        self._descriptions = descriptions
        self._kraft_upgrade = kraft_upgrade
        self._work = work
        self._in_order = asyncio.Lock()
        """Held from a client's request until its decision is asked for: none overtakes another
        whose resources are being looked at.
        """

    @property
    def descriptions(self) -> ClusterDescriptions:
        """For the listener, whose ApiVersions names features."""
        return self._descriptions

    @property
    def committed_end_offset(self) -> int:
        """Where the metadata that are committed end, as far as the controller has replayed them:
        every response that it has given tells only of what is below.
        """
        return self._controller.committed_image.provenance.last_contained_offset + 1

    async def handle(self, request: Message, context: ControllerRequestContext) -> Any:
        """The response to `request`, after what it did is committed."""
        api_key = ApiKey(request.API_KEY)
        assert api_key in CONTROLLER_APIS, f"{api_key.name} is not for the controller"
        operation = CLUSTER_OPERATION.get(api_key)
        if operation is not None and not context.authorized_cluster(operation):
            return await self._failure(
                request,
                context,
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "not permitted on the cluster",
            )
        if api_key in QUORUM_APIS:
            version = context.api_version
            return await self._quorum.handle(
                request, request.MAX_VERSION if version is None else version, context.client_host
            )
        if api_key in DESCRIBING_APIS:
            return await self._work.in_slices(self._descriptions.answer(request, context))
        if isinstance(request, UpdateFeaturesRequest) and names_kraft_version(request):
            return await update_with_kraft_version(
                request,
                current_level=self._descriptions.kraft_version,
                upgrade=self._kraft_upgrade,
                decide=lambda part: self._decide(part, context),
            )
        restrict = FILTERS.get(api_key)
        if restrict is not None:
            response = await self._decide_allowed(request, context, restrict)
        elif operation is Operation.CLUSTER_ACTION:
            response = await self._decision(request, context, self._begin(request, context))
        else:
            response = await self._decide(request, context)
        if context.api_version is not None:
            fit_version(response, context.api_version)
        return response

    async def _decide_allowed(
        self, request: Message, context: ControllerRequestContext, restrict: Any
    ) -> Any:
        """The response to a request for resources, of which the sender may ask for some."""
        work = self._work
        decision = None
        async with self._in_order:
            allowed, merge = await work.in_slices(
                restrict(request, context, self._controller.committed_image)
            )
            if allowed is not None:
                decision = self._begin(allowed, context)
        response = None
        if decision is not None:
            response = await self._decision(allowed, context, decision)
        return await work.in_slices(merge(response))

    async def _decide(self, request: Message, context: ControllerRequestContext) -> Any:
        async with self._in_order:
            decision = self._begin(request, context)
        return await self._decision(request, context, decision)

    def _begin(self, request: Message, context: ControllerRequestContext) -> asyncio.Future[Any]:
        timeout_ms = context.timeout_ms
        if timeout_ms is None:
            timeout_ms = float(getattr(request, "timeout_ms", DEFAULT_TIMEOUT_MS))
        return self._controller.ask(request, timeout_ms=timeout_ms)

    async def _decision(
        self, request: Message, context: ControllerRequestContext, decision: asyncio.Future[Any]
    ) -> Any:
        try:
            return await decision
        except RequestFailed as failure:
            return await self._failure(request, context, failure.error, failure.message)

    async def _failure(
        self, request: Message, context: ControllerRequestContext, error: ErrorCode, words: str
    ) -> Any:
        """The response that says of everything in the request that it failed."""
        return await self._work.on(
            request,
            partial(error_response, api_version=context.api_version),
            request,
            error,
            words,
        )
