"""Resources that carry configuration, as config requests name them: what a broker can check."""

from __future__ import annotations

import logging
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import topic_name_problem
from moldau.server.authorizer import Operation
from moldau.server.described_configs import config_permission
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


#: Resource types that requests may name here; the others belong to parts not served yet.
SERVED_TYPES: Final = frozenset(
    {
        ConfigResourceType.TOPIC,
        ConfigResourceType.BROKER,
        ConfigResourceType.BROKER_LOGGER,
        ConfigResourceType.GROUP,
    }
)

Problem = tuple[ErrorCode, str]

_REFUSALS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not allowed on this topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not allowed on this group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not allowed on the cluster",
}


def authorized_for(
    context: RequestContext,
    operation: Operation,
    resource_type: int,
    resource_name: str,
) -> Problem | None:
    """Why the client may not do this to the resource's configuration, or None when it may."""
    error = config_permission(context, operation, resource_type, resource_name)
    return None if error is ErrorCode.NONE else (error, _REFUSALS[error])


def problem(services: BrokerServices, resource_type: int, resource_name: str) -> Problem | None:
    """What is wrong with the resource a request names, or None."""
    if resource_type not in SERVED_TYPES:
        return (
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource_type} is not served; 2 (topic), 4 (broker), "
            "8 (broker logger) and 32 (group) are",
        )
    if resource_type == ConfigResourceType.TOPIC:
        illegal = topic_name_problem(resource_name)
        if illegal is not None:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, illegal
        if resource_name not in services.metadata.image.topics.topics_by_name:
            return (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {resource_name}",
            )
        return None
    if resource_type == ConfigResourceType.GROUP:
        if not resource_name:
            return ErrorCode.INVALID_REQUEST, "a group's name must not be empty"
        return None
    if resource_type == ConfigResourceType.BROKER and resource_name == "":
        return None
    if resource_name != str(services.broker_id):
        return (
            ErrorCode.INVALID_REQUEST,
            f"this broker answers for resource {services.broker_id}, not for {resource_name!r}",
        )
    return None


def known_loggers() -> list[str]:
    """Names of the loggers whose level can be changed, "root" first."""
    names = sorted(
        name
        for name, entry in logging.Logger.manager.loggerDict.items()
        if isinstance(entry, logging.Logger) and name.split(".")[0] == "moldau"
    )
    return ["root", *names]


def logger_level(logger_name: str) -> tuple[str, bool]:
    """A logger's level in Kafka's words, and whether it was set on that logger itself."""
    logger = logging.getLogger(None if logger_name == "root" else logger_name)
    level = FROM_PYTHON_LEVEL.get(logger.getEffectiveLevel(), "INFO")
    return level, logger.level != logging.NOTSET
