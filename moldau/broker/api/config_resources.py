"""Resources that carry configuration, as config requests name them: what a broker can check."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from moldau.broker.api.forwarding import forward
from moldau.broker.api.services import BrokerServices
from moldau.broker.lifecycle.controller_channel import DEFAULT_TIMEOUT_MS
from moldau.config import ConfigError, changes_listener
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p44_incremental_alter_configs import AlterConfigsResourceResponse
from moldau.runtime.slices import LoopSlices
from moldau.server.config_permissions import (
    STORES_NEED_ALTER,
    Problem,
    config_problem,
    may_change_stores,
)
from moldau.server.request import RequestContext

TO_PYTHON_LEVEL: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
LOG_LEVELS: Final = tuple(TO_PYTHON_LEVEL)
FROM_PYTHON_LEVEL: Final = {
    number: name for name, number in TO_PYTHON_LEVEL.items() if name != "TRACE"
}


def refusal(
    services: BrokerServices, context: RequestContext, operation: Operation, resource: Any
) -> Problem | None:
    """What is wrong with the resource, or why the client may not do this; None for nothing."""
    image = services.metadata.image
    return config_problem(context, operation, resource, image, services.broker_id, has_loggers=True)


async def alter(
    services: BrokerServices,
    context: RequestContext,
    request: Any,
    decide: Callable[[Any], Awaitable[Problem | None]],
    *,
    tells_repeated_once: bool,
) -> list[AlterConfigsResourceResponse]:
    """The entries of the response to AlterConfigs or IncrementalAlterConfigs. A resource named
    twice is INVALID_REQUEST.

    Args:
        decide: what becomes of a resource; None for what the controller decides.
        tells_repeated_once: a resource named twice has one entry, and not one for each time.
    """
    slices = LoopSlices(services.clock)
    counts = Counter[tuple[int, str]]()
    by_identity: dict[tuple[int, str], Any] = {}
    for resource in request.resources:
        if slices.is_over:
            await slices.next()
        identity = (resource.resource_type, resource.resource_name)
        counts[identity] += 1
        by_identity[identity] = resource
    entries: list[AlterConfigsResourceResponse] = []

    def tell(resource: Any, outcome: Problem) -> None:
        error, message = outcome
        entries.append(
            AlterConfigsResourceResponse(
                error_code=error,
                error_message=message or None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )

    forwarded = []
    for resource in by_identity.values() if tells_repeated_once else request.resources:
        if slices.is_over:
            await slices.next()
        outcome: Problem | None = ErrorCode.INVALID_REQUEST, "named twice in one request"
        if counts[resource.resource_type, resource.resource_name] == 1:
            outcome = await decide(resource)
        if outcome is None:
            forwarded.append(resource)
        else:
            tell(resource, outcome)
    if forwarded:
        to_forward = type(request)(resources=forwarded, validate_only=request.validate_only)
        answered = await forward(services, context, to_forward, timeout_ms=DEFAULT_TIMEOUT_MS)
        if answered is not None:
            return [*entries, *answered.responses]
        for resource in forwarded:
            tell(resource, (ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer"))
    return entries


async def listener_problem(
    services: BrokerServices, context: RequestContext, resource: Any, wanted: Mapping[str, str]
) -> Problem | None:
    """Why a listener of this broker cannot have the stores that it shall have.

    Args:
        resource: of the request, the broker's own or the default of all brokers.
        wanted: its whole dynamic configuration, as it shall be.
    """
    name = resource.resource_name
    current = services.metadata.image.configs.get(ConfigResourceType.BROKER, name)
    if not may_change_stores(context, resource, current):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, STORES_NEED_ALTER
    if not name or not any(map(changes_listener, (each.name for each in resource.configs))):
        return None
    try:
        await services.log_manager.filesystem.offload(services.check_listeners, wanted)
    except ConfigError as error:
        # As in Apache Kafka (KAFKA-13609): the broker's parts refuse with this error.
        return ErrorCode.INVALID_REQUEST, str(error)
    return None


def known_loggers() -> list[str]:
    """Names of the loggers whose level can be changed, "root" first: modules that log, and the
    packages that they are in.
    """
    names = logging.Logger.manager.loggerDict
    return ["root", *sorted(name for name in names if name.split(".")[0] == "moldau")]


def logger_level(logger_name: str) -> tuple[str, bool]:
    """A logger's level in Kafka's words, and whether it was set on that logger itself."""
    logger = logging.getLogger(None if logger_name == "root" else logger_name)
    level = FROM_PYTHON_LEVEL.get(logger.getEffectiveLevel(), "INFO")
    return level, logger.level != logging.NOTSET
