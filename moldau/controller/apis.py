"""The controller's requests: asked for permission, put in order, and answered in time.

Owns: the way of a request, by the row of its API, to the controller, the quorum or a description,
and what is forwarded in an Envelope (KIP-590). Called in process by a broker of the same node, and
by the request router of the controller listener. Must not: decide anything about metadata (`core`
does). Invariants: every request gets its own API's response, failures included; a client's requests
reach the controller in the order they came, and those of the quorum and of brokers never wait
behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from moldau.controller import permitted_parts
from moldau.controller.controller import Controller, RequestFailed
from moldau.controller.core.controller_core import decider
from moldau.controller.core.feature_control import is_known_upgrade_type, updated
from moldau.controller.core.result import TakesPermits, unlimited
from moldau.controller.descriptions import ClusterDescriptions
from moldau.controller.mutation_quotas import ControllerMutationQuotas
from moldau.metadata.features import KRAFT_VERSION, SUPPORTED_FEATURES
from moldau.metadata.steps import Steps
from moldau.protocol.access_control import Operation
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.envelope import (
    EnvelopeRefused,
    ForwardedRequest,
    decode_envelope,
    encode_enveloped_response,
)
from moldau.protocol.error_responses import error_response, fit_version, has_error
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import RequestHeader
from moldau.protocol.messages import p57_update_features as p57
from moldau.protocol.messages.p58_envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.schema import AnyRequest, Message, Request, Struct
from moldau.runtime.clock import Clock
from moldau.runtime.slices import completed
from moldau.server.api_versions import listener_handlers
from moldau.server.apis import (
    BY_LISTENER,
    CHANGES,
    CONTROLLER_APIS,
    DESCRIBED,
    FORWARDABLE_APIS,
    QUORUM,
    Api,
)
from moldau.server.change_log import ChangeLog
from moldau.server.decoding import Steps as DecodingSteps
from moldau.server.outgoing import Offload
from moldau.server.request import RequestContext, Sender, arrays_of
from moldau.server.request_router import Handler, Route, party_of

DEFAULT_TIMEOUT_MS: Final = 30_000

MAX_TIMEOUT_MS: Final = 60_000
"""How long a request for a change waits at most, whatever time its client gives it."""


DECIDERS: Final = {
    api_key: decider(api.controller)
    for api_key, api in CONTROLLER_APIS.items()
    if api.controller not in (QUORUM, DESCRIBED, BY_LISTENER)
}
"""What the active controller decides by; every other controller answers NOT_CONTROLLER."""


class QuorumRequests(Protocol):
    """Answers the APIs whose row says QUORUM."""

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
        """A lock for each client, held from its request until the decision is asked for, so that
        none overtakes another of the client whose resources are being looked at.
        """

    def routes(self) -> dict[int, Route]:
        told = self._descriptions
        own = listener_handlers(CONTROLLER_APIS, told.image, told.kraft_version)
        own[ApiKey.ENVELOPE] = Handler(answer=self._answer_envelope)
        others = Handler(answer=self.answer)
        routes = {}
        for api_key, api in CONTROLLER_APIS.items():
            routes[int(api_key)] = Route(
                api.min_version,
                api.max_version,
                partial(Handler, *own.get(api_key, others)),
                None if api.controller == BY_LISTENER else api.controller_lane,
                budget=api.controller_budget,
            )
        envelope = routes[ApiKey.ENVELOPE]
        # A forwarded request counts for its client, whatever broker's connection it comes by.
        envelope.lane, envelope.opened, envelope.asked_for_by = CHANGES, _opened, _client_of
        return routes

    def committed_end_offset(self) -> int:
        """Where the metadata that are committed end, as far as the controller has replayed them:
        every response that it has given is only about what is below.
        """
        return self._controller.committed_image.provenance.last_contained_offset + 1

    async def answer(self, context: Sender, request: Message) -> Message:
        assert isinstance(request, Request)
        api = CONTROLLER_APIS[ApiKey(request.API_KEY)]
        operation = api.operation
        if operation is not None and not context.authorized_cluster(operation):
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return await self._failure(request, context, error, "not permitted on the cluster")
        if api.controller == QUORUM:
            version = context.api_version
            return await self._quorum.handle(
                request, request.MAX_VERSION if version is None else version, context.client_host
            )
        if api.controller == DESCRIBED:
            return await self._work.in_slices(self._descriptions.answer(request, context))
        if isinstance(request, p57.UpdateFeaturesRequest) and any(
            update.feature == KRAFT_VERSION for update in request.feature_updates
        ):
            return await self._update_with_kraft_version(request, context)
        if api.restricted_by:
            response = await self._decide_allowed(api, request, context)
        elif operation is Operation.CLUSTER_ACTION:
            response = await self._decision(request, context, self._begin(request, context))
        else:
            response = await self._decide(request, context)
        if api.changed is not None:
            changes = api.changed(request, response)
            await self._work.in_slices(self._changes.answered(context, request, changes))
        if context.api_version is not None:
            fit_version(response, context.api_version)
        return response

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
        api = CONTROLLER_APIS[ApiKey(header.api_key)]
        if not api.min_version <= header.api_version <= api.max_version:
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

    async def _decide_allowed(self, api: Api, request: AnyRequest, context: Sender) -> Message:
        """The response to a request for resources, of which the sender may ask for some."""
        work = self._work
        decision = None
        restrict: permitted_parts.Filter = getattr(permitted_parts, api.restricted_by)
        quota, now_ms = self._mutations.of(api.strict_since, context), self._mutations.now_ms
        async with self._order_of(context):
            allowed, merge = await work.in_slices(
                restrict(request, context, self._controller.committed_image)
            )
            if allowed is not None:
                decision = self._begin(
                    allowed,
                    context,
                    unlimited if quota is None else lambda count: quota.take(count, now_ms()),
                )
        response = None
        if allowed is not None and decision is not None:
            response = await self._decision(allowed, context, decision)
        merged = await work.in_slices(merge(response))
        throttle_ms = 0 if quota is None else quota.throttle_ms(now_ms())
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
            DECIDERS[ApiKey(request.API_KEY)],
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


def _client_of(context: Sender, forwarded: ForwardedRequest | EnvelopeRefused) -> str | None:
    """The client whose request a broker forwards; none if the sender is no broker."""
    if isinstance(forwarded, EnvelopeRefused):
        return None
    if not context.authorized_cluster(Operation.CLUSTER_ACTION, logs_denied=False):
        return None
    return party_of(forwarded.principal, forwarded.client_host)


def _opened(envelope: EnvelopeRequest) -> DecodingSteps[ForwardedRequest | EnvelopeRefused]:
    try:
        return (yield from decode_envelope(envelope, FORWARDABLE_APIS))
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
        for name in arrays_of(type(struct)):
            elements = getattr(struct, name) or ()
            count += len(elements)
            if count > MANY_ELEMENTS:
                return True
            if elements and isinstance(elements[0], Struct):
                waiting.extend(elements)
    return False
