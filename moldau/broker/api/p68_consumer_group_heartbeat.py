"""ConsumerGroupHeartbeat v0–v1: join, stay in and leave a group (`consumer_groups`, KIP-848).

Behaviour: READ on the group, DESCRIBE on every topic named. Refused as UNSUPPORTED_VERSION while
`group.version` is below 1 or `group.coordinator.rebalance.protocols` is without "consumer".
INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_ID_NOT_FOUND,
GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID and
UNRELEASED_INSTANCE_ID as Kafka 4.3 has them. Of topics that a regular expression matches only
those count that the member may DESCRIBE. Unlike Kafka's, this coordinator also takes over classic
groups of librdkafka's sticky assignors, whose assignments carry data of their own. An expression
that takes over 0.3 ms to compile has its connection throttled for 1,000 times as long, at most
5 s. Known gaps: a regular expression of more than 1,024 bytes, or that takes RE2 more
than 64 KiB, names more than 4 Unicode classes, or has repetitions (`{1,249}`) of more than
1,000 altogether, is refused like one that is none.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.group.coordinator import client_of
from moldau.broker.coordinator.group.core.consumer_groups import refused_heartbeat
from moldau.broker.coordinator.group.core.context import Refusal
from moldau.metadata.features import GROUP_VERSION
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p68_consumer_group_heartbeat as p68
from moldau.server.request import RequestContext


def is_served(services: BrokerServices) -> bool:
    """Whether the cluster and this broker have the new protocol switched on."""
    protocols = services.node_config["group.coordinator.rebalance.protocols"]
    return services.metadata.image.features.level(GROUP_VERSION) >= 1 and "consumer" in protocols


def handle(
    services: BrokerServices, context: RequestContext, request: p68.ConsumerGroupHeartbeatRequest
) -> Iterator[None]:
    error = ErrorCode.NONE
    if not is_served(services):
        error = ErrorCode.UNSUPPORTED_VERSION
    elif not context.authorized(Operation.READ, ResourceType.GROUP, request.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        for name in request.subscribed_topic_names or ():
            if not context.authorized_topic(Operation.DESCRIBE, name):
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                break
            yield
    if error is not ErrorCode.NONE:
        context.respond(p68.ConsumerGroupHeartbeatResponse(error_code=error))
        return
    version = context.api_version
    try:
        services.coordinators.groups.check_heartbeat(request, version)
    except Refusal as refusal:
        context.respond(refused_heartbeat(refusal))
        return
    if request.subscribed_topic_regex:
        context.throttle_at_once(
            services.coordinators.matcher.rest_after(request.subscribed_topic_regex)
        )
    authorizer, principal, host = context.authorizer, context.principal, context.client_host
    client = client_of(context)._replace(
        authorize_topic=lambda name: authorizer.authorize(
            principal, host, Operation.DESCRIBE, ResourceType.TOPIC, name
        )
    )
    services.coordinators.groups.ask(
        request.group_id,
        context,
        lambda state, now_ms: state.consumer_groups.consumer_group_heartbeat(
            request, client, context, now_ms
        ),
        lambda error: p68.ConsumerGroupHeartbeatResponse(error_code=error),
        passes_limit=True,
    )
    context.hold_if_waiting()
