"""IncrementalAlterConfigs v0–v1 (KIP-339): set, delete, append and subtract single keys.

Behaviour: topics and brokers go to the controller; levels of loggers are changed by the broker that
is named, at once and until it restarts (KIP-412). A resource named twice is INVALID_REQUEST.
Known gaps: client metrics resources are refused until that part exists.
"""

from __future__ import annotations

import logging
from typing import Final

from moldau.broker.api.config_resources import (
    LOG_LEVELS,
    TO_PYTHON_LEVEL,
    alter,
    known_loggers,
    listener_problem,
    refusal,
)
from moldau.broker.api.services import BrokerServices
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p44_incremental_alter_configs as p44
from moldau.runtime.telemetry.logs import AUDIT, audit_kept
from moldau.server.change_log import configuration_change
from moldau.server.config_permissions import Problem
from moldau.server.request import RequestContext

SET: Final = 0
DELETE: Final = 1


async def answer(
    services: BrokerServices, context: RequestContext, request: p44.IncrementalAlterConfigsRequest
) -> p44.IncrementalAlterConfigsResponse:
    async def decide(resource: p44.AlterConfigsResource) -> Problem | None:
        kind, name = resource.resource_type, resource.resource_name
        refused = refusal(services, context, Operation.ALTER_CONFIGS, resource)
        if refused is None and kind == ConfigResourceType.BROKER_LOGGER:
            refused = _alter_loggers(resource.configs, validate_only=request.validate_only)
            if refused is None and not request.validate_only:
                services.changes.changed(context, configuration_change(resource))
            return refused or (ErrorCode.NONE, "")
        if refused is None and kind == ConfigResourceType.BROKER:
            wanted = dict(services.metadata.image.configs.get(kind, name))
            for each in resource.configs:
                if each.config_operation == SET and each.value is not None:
                    wanted[each.name] = each.value
                elif each.config_operation == DELETE:
                    wanted.pop(each.name, None)
            return await listener_problem(services, context, resource, wanted)
        return refused

    return p44.IncrementalAlterConfigsResponse(
        responses=await alter(services, context, request, decide, tells_repeated_once=False)
    )


def _alter_loggers(configs: list[p44.AlterableConfig], *, validate_only: bool) -> Problem | None:
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
        if config.name in AUDIT and (config.value or "").upper() in ("WARN", "ERROR", "FATAL"):
            return ErrorCode.INVALID_REQUEST, f"{config.name} says who did what: INFO at the least"
        if config.config_operation == DELETE and config.name == "root":
            return ErrorCode.INVALID_REQUEST, "the root logger always has a level"
    if not validate_only:
        with audit_kept():
            _set_levels(configs)
    return None


def _set_levels(configs: list[p44.AlterableConfig]) -> None:
    for config in configs:
        logger = logging.getLogger(None if config.name == "root" else config.name)
        if config.config_operation == DELETE:
            logger.setLevel(logging.NOTSET)
        else:
            assert config.value is not None, "checked before"
            logger.setLevel(TO_PYTHON_LEVEL[config.value.upper()])
