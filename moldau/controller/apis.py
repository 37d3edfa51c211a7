"""The controller's requests: which there are, which permissions they need, how long they may take.

Owns: dispatch from an ApiKey to the controller or the quorum, the permission each API needs, on the
cluster or on each resource that a request names, and what is forwarded in an Envelope (KIP-590).
Called in process by a broker of the same node, and by the request router of the controller
listener. Must not: decide anything about metadata. Invariants: every request gets a response of its
own API, failures included; a resource that the sender may not ask for never reaches the controller,
and every named one is answered; a client's requests reach the controller in the order they came,
and those of the quorum and of brokers never wait behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from moldau.controller.controller import Controller, RequestFailed
from moldau.controller.core.controller_core import HANDLERS, LIMITED_HANDLERS, TOKEN_HANDLERS
from moldau.controller.core.feature_control import is_known_upgrade_type, updated
from moldau.controller.core.result import TakesPermits, unlimited
from moldau.controller.descriptions import ClusterDescriptions
from moldau.controller.mutation_quotas import ControllerMutationQuotas
from moldau.metadata.features import KRAFT_VERSION, SUPPORTED_FEATURES
from moldau.metadata.image import MetadataImage
from moldau.metadata.steps import Steps, repeated
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.api_keys import QUORUM_APIS, ApiKey
from moldau.protocol.delegation_tokens import owner_of, without_token
from moldau.protocol.envelope import (
    EnvelopeRefused,
    ForwardedRequest,
    decode_envelope,
    encode_enveloped_response,
)
from moldau.protocol.error_responses import error_response, fit_version, has_error
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import RequestHeader
from moldau.protocol.messages import p19_create_topics as p19
from moldau.protocol.messages import p20_delete_topics as p20
from moldau.protocol.messages import p33_alter_configs as legacy
from moldau.protocol.messages import p37_create_partitions as p37
from moldau.protocol.messages import p38_create_delegation_token as p38
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
from moldau.protocol.messages import p57_update_features as p57
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p58_envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.registry import request_class
from moldau.protocol.schema import AnyRequest, Message, Request, Struct
from moldau.protocol.types import METADATA_TOPIC_NAME, ZERO_UUID
from moldau.runtime.clock import Clock
from moldau.runtime.slices import completed
from moldau.server.api_versions import answer_api_versions
from moldau.server.authentication.out_of_place import refuse_handshake, refuse_token
from moldau.server.change_log import CHANGES_OF, ChangeLog
from moldau.server.decoding import (
    BULK_BYTES,
    SCALARS,
    Budget,
    needs,
    on_cluster,
    on_configs,
    on_topics,
)
from moldau.server.decoding import Steps as DecodingSteps
from moldau.server.described_configs import (
    STORES_NEED_ALTER,
    config_permission,
    may_change_stores,
)
from moldau.server.fair_shares import Lane
from moldau.server.outgoing import Offload
from moldau.server.request import RequestContext, Sender, array_names
from moldau.server.request_router import Handler, Route, party_of
from moldau.text import quoted

DEFAULT_TIMEOUT_MS: Final = 30_000

MAX_TIMEOUT_MS: Final = 60_000
"""How long a request for a change waits at most, whatever time its client gives it."""

logger = logging.getLogger(__name__)

ACTIVE_CONTROLLER_APIS: Final = frozenset(
    map(ApiKey, (*HANDLERS, *LIMITED_HANDLERS, *TOKEN_HANDLERS))
) | {
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.UNREGISTER_BROKER,
}
"""Decided by the active controller; every other answers NOT_CONTROLLER."""

DESCRIBING_APIS: Final = frozenset(
    {
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    }
)
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
    ApiKey.DESCRIBE_CLUSTER: Operation.ALTER,  # more than at a broker, as in Apache Kafka
    ApiKey.DESCRIBE_ACLS: Operation.DESCRIBE,
    ApiKey.CREATE_ACLS: Operation.ALTER,
    ApiKey.DELETE_ACLS: Operation.ALTER,
    ApiKey.ALTER_CLIENT_QUOTAS: Operation.ALTER_CONFIGS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Operation.DESCRIBE,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Operation.ALTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Operation.DESCRIBE,
    ApiKey.ELECT_LEADERS: Operation.ALTER,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Operation.ALTER,
    ApiKey.UPDATE_FEATURES: Operation.ALTER,
    ApiKey.UNREGISTER_BROKER: Operation.ALTER,
    ApiKey.ADD_RAFT_VOTER: Operation.ALTER,
    ApiKey.REMOVE_RAFT_VOTER: Operation.ALTER,
}
"""The permission on the cluster that an API needs; the others ask for each resource."""

PEER_APIS: Final = {ApiKey.DESCRIBE_QUORUM} | {
    api_key for api_key, needed in CLUSTER_OPERATION.items() if needed is Operation.CLUSTER_ACTION
}
"""What the quorum and brokers ask, in a lane of their own."""

CHANGES: Final = Lane("changes", 64)
"""What the active controller decides for clients, forwarded requests included. A request that has
begun keeps its place though its client has gone: the controller still holds what it began.
"""

DESCRIPTIONS: Final = Lane("descriptions", 16)
"""Answered from what this controller has replayed."""

PEERS: Final = Lane("nodes", 20_000)
"""Waiting fetches of the quorum included. The nodes may be one principal, which gets a half."""


SERVED: Final[dict[ApiKey, tuple[int, int]]] = {
    api_key: (request_class(api_key).MIN_VERSION, request_class(api_key).LATEST_STABLE_VERSION)
    for api_key in sorted(
        CONTROLLER_APIS
        | {ApiKey.API_VERSIONS, ApiKey.ENVELOPE, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    )
}
"""What ApiVersions tells, and nothing else is served: the lowest and highest version by API."""


NAMED_TWICE: Final = "named twice in one request"

Merge = Callable[[Any], Steps[Message]]
Filtered = Steps[tuple[AnyRequest | None, Merge]]
Filter = Callable[[Any, Sender, MetadataImage], Filtered]
"""Of a request that names resources, the one that the sender may ask for (None when nothing is
left), and a function that makes the whole response out of the controller's, or of None. Both work
in steps, since a request may name much.
"""


def _may_ask(
    topics: list[Any],
    is_allowed: Callable[[str], bool],
    words: str,
    result_class: Callable[..., Any],
) -> Steps[tuple[list[Any], list[Any]]]:
    """The topics that the sender may ask for, and what the others are told."""
    named_twice = yield from repeated(topic.name for topic in topics)
    refused = []
    for name in sorted(named_twice):
        refused.append(
            result_class(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=NAMED_TWICE)
        )
        yield
    allowed = []
    for topic in topics:
        yield
        if topic.name in named_twice:
            continue
        if is_allowed(topic.name):
            allowed.append(topic)
        else:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused.append(result_class(name=topic.name, error_code=error, error_message=words))
    return allowed, refused


def _joined(response_class: Callable[[], Message], field: str, refused: list[Any]) -> Merge:
    """Merges by adding the refusals to the response's results, which are in that field."""

    def merge(response: Message | None) -> Steps[Message]:
        response = response or response_class()
        getattr(response, field).extend(refused)
        yield
        return response

    return merge


def _create_topics(
    request: p19.CreateTopicsRequest, context: Sender, _image: MetadataImage
) -> Filtered:
    """CREATE on the cluster or the topic; without DESCRIBE_CONFIGS the configuration is hidden."""
    cluster_wide = context.authorized_cluster(Operation.CREATE, logs_denied=False)
    allowed, refused = yield from _may_ask(
        request.topics,
        lambda name: (
            name != METADATA_TOPIC_NAME
            and (cluster_wide or context.authorized_topic(Operation.CREATE, name))
        ),
        "creating it is not allowed",
        p19.CreatableTopicResult,
    )

    def merge(response: p19.CreateTopicsResponse | None) -> Steps[Message]:
        response = response or p19.CreateTopicsResponse()
        for result in response.topics:
            yield
            if not context.authorized_topic(
                Operation.DESCRIBE_CONFIGS, result.name, logs_denied=False
            ):
                if result.error_code == ErrorCode.NONE:
                    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                result.configs, result.num_partitions, result.replication_factor = [], -1, -1
        response.topics += refused
        return response

    if not allowed:
        return None, merge
    return (
        p19.CreateTopicsRequest(
            topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only
        ),
        merge,
    )


def _delete_topics(
    request: p20.DeleteTopicsRequest, context: Sender, image: MetadataImage
) -> Filtered:
    """DELETE on the cluster, or else on the topic: a name needs DESCRIBE, too, and only with it is
    a sender told that there is no such topic, or what an id's name is.
    """
    states = [*request.topics, *(p20.DeleteTopicState(name=name) for name in request.topic_names)]
    yield
    named_twice = yield from repeated(
        state.topic_id if state.topic_id != ZERO_UUID else state.name for state in states
    )
    refused: list[p20.DeletableTopicResult] = []
    allowed: list[p20.DeleteTopicState] = []
    seen: set[UUID | str | None] = set()
    deletes_all = context.authorized_cluster(Operation.DELETE, logs_denied=False)
    for state in states:
        yield
        identity = state.topic_id if state.topic_id != ZERO_UUID else state.name
        if identity in seen:
            continue
        seen.add(identity)
        refusal = _may_delete(state, context, image, deletes_all)
        if identity in named_twice:
            refusal = p20.DeletableTopicResult(
                name=state.name, error_code=ErrorCode.INVALID_REQUEST, error_message=NAMED_TWICE
            )
        if refusal is None:
            allowed.append(state)
        else:
            refusal.topic_id = state.topic_id
            refused.append(refusal)

    def merge(response: p20.DeleteTopicsResponse | None) -> Steps[Message]:
        response = response or p20.DeleteTopicsResponse()
        response.responses += refused
        yield
        if context.api_version is not None and context.api_version < 6:
            for result in response.responses:
                result.name = result.name or ""
                yield
        return response

    if not allowed:
        return None, merge
    return p20.DeleteTopicsRequest(topics=allowed, timeout_ms=request.timeout_ms), merge


def _may_delete(
    state: p20.DeleteTopicState, context: Sender, image: MetadataImage, deletes_all: bool
) -> p20.DeletableTopicResult | None:
    """The refusal, without the id; None when the controller decides."""
    if (state.topic_id != ZERO_UUID) == (state.name is not None):
        return p20.DeletableTopicResult(
            name=state.name,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="name the topic by its name or by its id, not by both or neither",
        )
    if deletes_all:
        return None
    refused = p20.DeletableTopicResult(
        name=state.name,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="deleting it is not allowed",
    )
    if state.name is None:
        known = image.topics.topics_by_id.get(state.topic_id)
        if known is None or context.authorized_topic(Operation.DELETE, known.name):
            return None  # the controller says UNKNOWN_TOPIC_ID
        if context.authorized_topic(Operation.DESCRIBE, known.name, logs_denied=False):
            refused.name = known.name
        return refused
    is_told = context.authorized_topic(Operation.DESCRIBE, state.name, logs_denied=False)
    if is_told and state.name not in image.topics.topics_by_name:
        return None  # the controller says UNKNOWN_TOPIC_OR_PARTITION
    # Logged is the right to ask for: DELETE, with which DESCRIBE comes unless an ACL denies it.
    may_delete = context.authorized_topic(Operation.DELETE, state.name) and (
        is_told or context.authorized_topic(Operation.DESCRIBE, state.name)
    )
    return None if may_delete else refused


def _create_partitions(
    request: p37.CreatePartitionsRequest, context: Sender, _image: MetadataImage
) -> Filtered:
    """ALTER on the topic."""
    allowed, refused = yield from _may_ask(
        request.topics,
        lambda name: context.authorized_topic(Operation.ALTER, name),
        "altering it is not allowed",
        p37.CreatePartitionsTopicResult,
    )
    merge = _joined(p37.CreatePartitionsResponse, "results", refused)
    if not allowed:
        return None, merge
    return (
        p37.CreatePartitionsRequest(
            topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only
        ),
        merge,
    )


def _create_delegation_token(
    request: p38.CreateDelegationTokenRequest, context: Sender, _image: MetadataImage
) -> Filtered:
    """CREATE_TOKENS on the user that it is for, unless that is the sender (KIP-373)."""
    owner = owner_of(request, context.principal)
    is_own = owner == context.principal
    is_allowed = is_own or context.authorized(Operation.CREATE_TOKENS, ResourceType.USER, owner)

    def merge(response: p38.CreateDelegationTokenResponse | None) -> Steps[Message]:
        yield
        if response is not None:
            if response.error_code == ErrorCode.POLICY_VIOLATION:
                logger.warning("%s has as many delegation tokens as it may have", quoted(owner))
            return response
        error = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        return without_token(request, context.principal, error)

    yield
    return request if is_allowed else None, merge


def _config_filter(
    request_class: Callable[..., AnyRequest], response_class: Callable[[], Message]
) -> Filter:
    def restrict(request: Any, context: Sender, image: MetadataImage) -> Filtered:
        allowed, refused = [], []
        for resource in request.resources:
            yield
            kind, name = resource.resource_type, resource.resource_name
            error = config_permission(context, Operation.ALTER_CONFIGS, kind, name)
            words = "altering its configuration is not allowed"
            if error is ErrorCode.NONE and not may_change_stores(
                context, resource, image.configs.get(kind, name)
            ):
                error, words = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, STORES_NEED_ALTER
            if error is ErrorCode.NONE:
                allowed.append(resource)
            else:
                refused.append(
                    incremental.AlterConfigsResourceResponse(
                        error_code=error,
                        error_message=words,
                        resource_type=kind,
                        resource_name=name,
                    )
                )

        merge = _joined(response_class, "responses", refused)
        if not allowed:
            return None, merge
        return request_class(resources=allowed, validate_only=request.validate_only), merge

    return restrict


FILTERS: Final[dict[ApiKey, Filter]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: _create_delegation_token,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ALTER_CONFIGS: _config_filter(legacy.AlterConfigsRequest, legacy.AlterConfigsResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _config_filter(
        incremental.IncrementalAlterConfigsRequest, incremental.IncrementalAlterConfigsResponse
    ),
}


BUDGETS: Final = {
    ApiKey.CREATE_TOPICS: needs(on_cluster(Operation.CREATE), on_topics(Operation.CREATE)),
    ApiKey.DELETE_TOPICS: needs(on_cluster(Operation.DELETE), on_topics(Operation.DELETE)),
    ApiKey.CREATE_PARTITIONS: needs(on_topics(Operation.ALTER)),
    ApiKey.ALTER_CONFIGS: on_configs(Operation.ALTER_CONFIGS),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: on_configs(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_CONFIGS: on_configs(Operation.DESCRIBE_CONFIGS),
}
"""Of the decoding of requests that need no right on the cluster alone; others name one thing."""


class QuorumRequests(Protocol):
    """Answers QUORUM_APIS."""

    async def handle(self, request: AnyRequest, api_version: int, client_host: str) -> Message:
        """The response to `request`, now or when it is due (Fetch may wait)."""


class KraftUpgrade(Protocol):
    """Raises the level of the quorum, or finds it there already."""

    async def __call__(self, level: int, *, timeout_ms: int) -> tuple[ErrorCode, str]:
        """The error, and what to say of it: NOT_LEADER_OR_FOLLOWER when this node does not lead."""


class ControllerApis:
    """Answers requests on the quorum's loop."""

    def __init__(
        self,
        controller: Controller,
        quorum: QuorumRequests,
        descriptions: ClusterDescriptions,
        *,
        kraft_upgrade: KraftUpgrade,
        work: LongWork,
        mutations: ControllerMutationQuotas,
        changes: ChangeLog,
    ) -> None:
        self._controller = controller
        self._quorum = quorum
        self._descriptions = descriptions
        self._kraft_upgrade = kraft_upgrade
        self._work = work
        self._mutations = mutations
        self._changes = changes
        self._in_order: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By client: held from its request until the decision is asked for, so that none overtakes
        another of the client whose resources are being looked at.
        """

    def routes(self) -> dict[int, Route]:
        own = {
            ApiKey.API_VERSIONS: Route(
                *SERVED[ApiKey.API_VERSIONS], lambda: Handler(handle=self._answer_api_versions)
            ),
            ApiKey.SASL_HANDSHAKE: Route(
                *SERVED[ApiKey.SASL_HANDSHAKE], lambda: Handler(handle=refuse_handshake)
            ),
            ApiKey.SASL_AUTHENTICATE: Route(
                *SERVED[ApiKey.SASL_AUTHENTICATE], lambda: Handler(handle=refuse_token)
            ),
            ApiKey.ENVELOPE: Route(
                *SERVED[ApiKey.ENVELOPE],
                lambda: Handler(answer=self._answer_envelope),
                CHANGES,
                _opened,
                _client_of,
                needs(on_cluster(Operation.CLUSTER_ACTION), max_bytes=BULK_BYTES),
            ),
        }
        routes = {
            api_key: Route(
                *SERVED[api_key],
                lambda: Handler(answer=self.answer),
                _lane_of(api_key),
                budget=_budget_of(api_key),
            )
            for api_key in CONTROLLER_APIS
        }
        return {int(api_key): route for api_key, route in {**routes, **own}.items()}

    def committed_end_offset(self) -> int:
        """Where the metadata that are committed end, as far as the controller has replayed them:
        every response that it has given tells only of what is below.
        """
        return self._controller.committed_image.provenance.last_contained_offset + 1

    async def answer(self, context: Sender, request: Message) -> Message:
        assert isinstance(request, Request)
        api_key = ApiKey(request.API_KEY)
        assert api_key in CONTROLLER_APIS, f"{api_key.name} is not for the controller"
        operation = CLUSTER_OPERATION.get(api_key)
        if operation is not None and not context.authorized_cluster(operation):
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return await self._failure(request, context, error, "not permitted on the cluster")
        if api_key in QUORUM_APIS:
            version = context.api_version
            return await self._quorum.handle(
                request, request.MAX_VERSION if version is None else version, context.client_host
            )
        if api_key in DESCRIBING_APIS:
            return await self._work.in_slices(self._descriptions.answer(request, context))
        if isinstance(request, p57.UpdateFeaturesRequest) and any(
            update.feature == KRAFT_VERSION for update in request.feature_updates
        ):
            return await self._update_with_kraft_version(request, context)
        restrict = FILTERS.get(api_key)
        if restrict is not None:
            response = await self._decide_allowed(request, context, restrict)
        elif operation is Operation.CLUSTER_ACTION:
            response = await self._decision(request, context, self._begin(request, context))
        else:
            response = await self._decide(request, context)
        if api_key in CHANGES_OF:
            await self._work.in_slices(self._changes.answered(context, request, response))
        if context.api_version is not None:
            fit_version(response, context.api_version)
        return response

    def _answer_api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> None:
        descriptions = self._descriptions
        answer_api_versions(
            context, request, SERVED, descriptions.image(), descriptions.kraft_version()
        )

    async def _answer_envelope(
        self, context: RequestContext, forwarded: ForwardedRequest | EnvelopeRefused
    ) -> EnvelopeResponse:
        """Serve the embedded request as if its client had sent it here (KIP-590).

        An error of the Envelope itself is for the broker: NOT_CONTROLLER makes it look for the
        active controller and try again, whatever part of the inner response says it.
        """
        if not context.authorized_cluster(Operation.CLUSTER_ACTION):
            return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if isinstance(forwarded, EnvelopeRefused):
            return EnvelopeResponse(error_code=forwarded.error)
        header = forwarded.header
        lowest, highest = SERVED.get(ApiKey(header.api_key), (0, -1))
        if not lowest <= header.api_version <= highest:
            return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        client = Sender(
            forwarded.principal,
            context.authorizer,
            header.client_id,
            client_host=forwarded.client_host,
            api_version=header.api_version,
            listener_name=context.listener_name,
            token_authenticated=forwarded.token_authenticated,
            api_key=header.api_key,
        )
        response = await self.answer(client, forwarded.message)
        return await self._work.on(response, _closed, response, header, self.committed_end_offset())

    async def _update_with_kraft_version(
        self, request: p57.UpdateFeaturesRequest, context: Sender
    ) -> p57.UpdateFeaturesResponse:
        """Answer an update of `kraft.version`, which the quorum raises, and of other features."""

        async def decide(*, validate_only: bool) -> p57.UpdateFeaturesResponse:
            part = p57.UpdateFeaturesRequest(
                timeout_ms=request.timeout_ms, feature_updates=others, validate_only=validate_only
            )
            response = await self._decide(part, context)
            assert isinstance(response, p57.UpdateFeaturesResponse)
            return response

        own = [each for each in request.feature_updates if each.feature == KRAFT_VERSION]
        others = [each for each in request.feature_updates if each.feature != KRAFT_VERSION]
        problem = _problem(own, self._descriptions.kraft_version())
        if problem:
            return _failed(ErrorCode.INVALID_UPDATE_VERSION, problem)
        # Also when there are no others: a controller that does not lead must not answer.
        response = await decide(validate_only=True)
        if response.error_code != ErrorCode.NONE:
            return response
        # Also when the level is that already: it may not be committed yet, and would not last then.
        if not request.validate_only:
            error, words = await self._kraft_upgrade(
                own[0].max_version_level, timeout_ms=max(request.timeout_ms, 0)
            )
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                error = ErrorCode.NOT_CONTROLLER
            if error is not ErrorCode.NONE:
                return _failed(error, words)
            if others:
                response = await decide(validate_only=False)
        response.results.append(updated(KRAFT_VERSION))
        return response

    async def _decide_allowed(
        self, request: AnyRequest, context: Sender, restrict: Filter
    ) -> Message:
        """The response to a request for resources, of which the sender may ask for some."""
        work = self._work
        decision = None
        quota = self._mutations.of(ApiKey(request.API_KEY), context)
        async with self._order_of(context):
            allowed, merge = await work.in_slices(
                restrict(request, context, self._controller.committed_image)
            )
            if allowed is not None:
                decision = self._begin(allowed, context, quota.takes_permits)
        response = None
        if allowed is not None and decision is not None:
            response = await self._decision(allowed, context, decision)
        merged = await work.in_slices(merge(response))
        throttle_ms = quota.throttle_ms()
        if throttle_ms:
            merged.throttle_time_ms = throttle_ms  # type: ignore[attr-defined]  # all of these APIs
        return merged

    async def _decide(self, request: AnyRequest, context: Sender) -> Message:
        async with self._order_of(context):
            decision = self._begin(request, context)
        return await self._decision(request, context, decision)

    def _order_of(self, context: Sender) -> asyncio.Lock:
        party = party_of(context.principal, context.client_host)
        return self._in_order.setdefault(party, asyncio.Lock())

    def _begin(
        self, request: AnyRequest, context: Sender, takes_permits: TakesPermits = unlimited
    ) -> asyncio.Future[Message]:
        timeout_ms = context.timeout_ms
        if timeout_ms is None:
            timeout_ms = float(getattr(request, "timeout_ms", DEFAULT_TIMEOUT_MS))
        return self._controller.ask(
            request,
            timeout_ms=min(timeout_ms, MAX_TIMEOUT_MS),
            takes_permits=takes_permits,
            principal=context.principal,
        )

    async def _decision(
        self, request: AnyRequest, context: Sender, decision: asyncio.Future[Message]
    ) -> Message:
        try:
            return await decision
        except RequestFailed as failure:
            return await self._failure(request, context, failure.error, failure.message)

    async def _failure(
        self, request: AnyRequest, context: Sender, error: ErrorCode, words: str
    ) -> Message:
        """The response that says of everything in the request that it failed."""
        respond = partial(error_response, api_version=context.api_version)
        return await self._work.on(request, respond, request, error, words)


def _lane_of(api_key: ApiKey) -> Lane:
    if api_key in PEER_APIS:
        return PEERS
    return DESCRIPTIONS if api_key in DESCRIBING_APIS else CHANGES


def _budget_of(api_key: ApiKey) -> Budget:
    operation = CLUSTER_OPERATION.get(api_key)
    if operation is Operation.CLUSTER_ACTION:
        return needs(on_cluster(operation), max_bytes=BULK_BYTES)
    return needs(on_cluster(operation)) if operation else BUDGETS.get(api_key, SCALARS)


def _client_of(context: Sender, forwarded: ForwardedRequest | EnvelopeRefused) -> str | None:
    """The client whose request a broker forwards; none if the sender is no broker."""
    if isinstance(forwarded, EnvelopeRefused):
        return None
    if not context.authorized_cluster(Operation.CLUSTER_ACTION, logs_denied=False):
        return None
    return party_of(forwarded.principal, forwarded.client_host)


def _opened(envelope: EnvelopeRequest) -> DecodingSteps[ForwardedRequest | EnvelopeRefused]:
    try:
        return (yield from decode_envelope(envelope))
    except EnvelopeRefused as refusal:
        return refusal


def _closed(
    response: Message, header: RequestHeader, committed_end_offset: int
) -> EnvelopeResponse:
    if has_error(response, ErrorCode.NOT_CONTROLLER):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    return encode_enveloped_response(response, header, committed_end_offset=committed_end_offset)


def _problem(own: list[p57.FeatureUpdateKey], current_level: int) -> str:
    supported = SUPPORTED_FEATURES[KRAFT_VERSION]
    level = own[0].max_version_level
    if len(own) > 1:
        return "it is named twice"
    if not is_known_upgrade_type(own[0]):
        return f"there is no upgrade type {own[0].upgrade_type}"
    if not supported.minimum_level <= level <= supported.maximum_level:
        return f"level {level} is not supported: 0 to {supported.maximum_level} are"
    if level < current_level:
        return f"the quorum cannot go back from level {current_level} to {level}"
    return ""


def _failed(error: ErrorCode, words: str) -> p57.UpdateFeaturesResponse:
    return p57.UpdateFeaturesResponse(
        error_code=error, error_message=f"nothing was updated, because of {KRAFT_VERSION}: {words}"
    )


T = TypeVar("T")

MANY_ELEMENTS: Final = 1_000
"""Making or encoding a message with more parts than this is left to another thread."""


class LongWork:
    """The two ways to do long work without holding up the loop."""

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock = clock
        self._offload = offload

    async def in_slices(self, steps: Steps[T]) -> T:
        return await completed(self._clock, steps)

    async def on(self, message: Message, function: Callable[..., T], *arguments: object) -> T:
        """What `function` makes of the arguments, in another thread if the message is large."""
        if has_many_elements(message):
            return await self._offload(function, *arguments)
        return function(*arguments)


def has_many_elements(message: Struct) -> bool:
    """Whether its arrays have more than MANY_ELEMENTS elements, those inside of others included."""
    count = 0
    waiting: list[Struct] = [message]
    while waiting:
        struct = waiting.pop()
        for name in array_names(type(struct)):
            elements = getattr(struct, name) or ()
            count += len(elements)
            if count > MANY_ELEMENTS:
                return True
            if elements and isinstance(elements[0], Struct):
                waiting.extend(elements)
    return False
