"""What is wrong with a resource whose configuration is asked for or changed, and who may ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.metadata.image import ConfigResourceType
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.server.authorizer import Authorizer
from moldau.server.config_permissions import config_permission, config_problem
from moldau.server.request import Sender

NODE_ID = 3
IMAGE: Any = SimpleNamespace(topics=SimpleNamespace(topics_by_name={"t": object()}))
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
LOGGER, GROUP = ConfigResourceType.BROKER_LOGGER, ConfigResourceType.GROUP


class Allows(Authorizer):
    """Allows one operation on one kind of resource."""

    def __init__(self, operation: Operation, kind: ResourceType) -> None:
        self.allowed = operation, kind

    def authorize(self, principal: str, client_host: str, *question: Any) -> bool:
        return question[:2] == self.allowed


@pytest.mark.parametrize(
    ("kind", "resource", "refused"),
    [
        (TOPIC, ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (GROUP, ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (BROKER, ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (LOGGER, ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (99, ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_the_right_is_that_on_the_resource_itself(
    kind: int, resource: ResourceType, refused: ErrorCode
) -> None:
    asked = Operation.DESCRIBE_CONFIGS
    allowed = Sender("User:a", Allows(asked, resource))
    assert config_permission(allowed, asked, kind, "t") is ErrorCode.NONE
    assert config_permission(allowed, Operation.ALTER_CONFIGS, kind, "t") is refused
    named = SimpleNamespace(resource_type=kind, resource_name="t")
    problem = config_problem(
        allowed, Operation.ALTER_CONFIGS, named, IMAGE, NODE_ID, has_loggers=True
    )
    assert problem is not None
    assert problem[0] is refused
    assert problem[1].startswith("not allowed on th")


@pytest.mark.parametrize(
    ("kind", "name", "has_loggers", "wrong"),
    [
        (TOPIC, "t", False, ""),
        (TOPIC, "u", False, "there is no topic u"),
        (TOPIC, "a/b", False, "a/b"),
        (GROUP, "g", False, ""),
        (GROUP, "", False, "must not be empty"),
        (BROKER, "3", False, ""),
        (BROKER, "", False, ""),
        (BROKER, "4", False, "answers for 3, not for '4'"),
        (LOGGER, "3", True, ""),
        (LOGGER, "", True, "answers for 3, not for ''"),
        (LOGGER, "3", False, "resource type 8 is not served here; 2 (topic), 4 (broker), 32"),
        (99, "3", True, "resource type 99 is not served here; 2 (topic), 4 (broker), 8"),
        (99, "3", False, "resource type 99 is not served here; 2 (topic), 4 (broker), 32"),
    ],
)
def test_what_is_wrong_with_a_resource(kind: int, name: str, has_loggers: bool, wrong: str) -> None:
    named = SimpleNamespace(resource_type=kind, resource_name=name)
    sender = Sender("User:a", Authorizer())
    problem = config_problem(
        sender, Operation.DESCRIBE_CONFIGS, named, IMAGE, NODE_ID, has_loggers=has_loggers
    )
    if not wrong:
        assert problem is None
        return
    assert problem is not None
    error, text = problem
    assert wrong in text
    if kind != TOPIC:
        assert error is ErrorCode.INVALID_REQUEST
    else:
        assert error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
