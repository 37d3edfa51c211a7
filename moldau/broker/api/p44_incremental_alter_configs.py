"""IncrementalAlterConfigs v0–v1 (KIP-339): set, delete, append and subtract single keys.

Behaviour: topics and brokers go to the controller; levels of loggers are changed by the broker that
is named, at once and until it restarts (KIP-412). A resource named twice is INVALID_REQUEST.
Known gaps: client metrics resources are refused until that part exists.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from moldau.broker.api.config_resources import (
    LOG_LEVELS,
    TO_PYTHON_LEVEL,
    Problem,
    authorized_for,
    known_loggers,
    problem,
)
from moldau.broker.api.forwarding import forward
from moldau.broker.api.services import BrokerServices
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.runtime.slices import LoopSlices
from moldau.server.authorizer import Operation
from moldau.server.request import RequestContext

SET: Final = 0
DELETE: Final = 1
FORWARD_TIMEOUT_MS: Final = 30_000


async def answer(
    services: BrokerServices, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    slices = LoopSlices(services.clock)
    counts = Counter[tuple[int, str]]()
    for resource in request.resources:
        if slices.is_over:
            await slices.next()
        counts[resource.resource_type, resource.resource_name] += 1
    response = IncrementalAlterConfigsResponse()
    forwarded: list[AlterConfigsResource] = []
    for resource in request.resources:
        if slices.is_over:
            await slices.next()
        identity = (resource.resource_type, resource.resource_name)
        refused: Problem | None
        if counts[identity] > 1:
            refused = ErrorCode.INVALID_REQUEST, "named twice in one request"
        else:
            refused = authorized_for(context, Operation.ALTER_CONFIGS, *identity) or problem(
                services, *identity
            )
        if refused is None and resource.resource_type == ConfigResourceType.BROKER_LOGGER:
            refused = _alter_loggers(resource.configs, validate_only=request.validate_only)
        elif refused is None:
            forwarded.append(resource)
            continue
        response.responses.append(_entry(resource, refused or (ErrorCode.NONE, "")))
    if forwarded:
        answered = await forward(
            services,
            context,
            IncrementalAlterConfigsRequest(
                resources=forwarded, validate_only=request.validate_only
            ),
            timeout_ms=FORWARD_TIMEOUT_MS,
        )
        if answered is None:
            silence = ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer"
            response.responses += [_entry(resource, silence) for resource in forwarded]
        else:
            response.responses += answered.responses
    return response


def _entry(resource: AlterConfigsResource, outcome: Problem) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=outcome[0],
        error_message=outcome[1] or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _alter_loggers(configs: list[AlterableConfig], *, validate_only: bool) -> Problem | None:
    loggers = set(known_loggers())
    for config in configs:
        if config.name not in loggers:
            return ErrorCode.INVALID_CONFIG, f"there is no logger {config.name!r}"
        if config.config_operation not in (SET, DELETE):
            return ErrorCode.INVALID_REQUEST, "a logger's level can be set or deleted"
        if config.config_operation == SET and (config.value or "").upper() not in LOG_LEVELS:
            allowed = ", ".join(LOG_LEVELS)
            return (
                ErrorCode.INVALID_CONFIG,
                f"{config.name}={config.value!r} is no log level: one of {allowed}",
            )
        if config.config_operation == DELETE and config.name == "root":
            return ErrorCode.INVALID_REQUEST, "the root logger always has a level"
    if not validate_only:
        for config in configs:
            logger = logging.getLogger(None if config.name == "root" else config.name)
            if config.config_operation == DELETE:
                logger.setLevel(logging.NOTSET)
            else:
                assert config.value is not None, "checked above"
                logger.setLevel(TO_PYTHON_LEVEL[config.value.upper()])
    return None
