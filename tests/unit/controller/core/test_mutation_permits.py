"""Partitions that come and go count against their sender's quota (KIP-599)."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.unit.metadata.builders import CoreDriver

NONE, THROTTLED = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED


class Quota:
    """So many partitions may change."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked: list[int] = []

    def takes(self, count: int) -> bool:
        self.asked.append(count)
        if count > self.left:
            return False
        self.left -= count
        return True


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    driver.join(1)
    driver.topic("a", [1], [1])
    driver.topic("b", [1], [1], [1])
    driver.topic("c", [1])
    return driver


def asked(
    driver: CoreDriver, request: Any, answers: str, left: int
) -> tuple[list[ErrorCode], Quota]:
    quota = Quota(left)
    response = driver.ask(request, takes_permits=quota.takes)
    found = getattr(response, answers)
    assert all(each.error_message for each in found if each.error_code)
    return [ErrorCode.of(each.error_code) for each in found], quota


def sizes(driver: CoreDriver) -> dict[str, int]:
    return {
        name: len(topic.partitions) for name, topic in driver.image.topics.topics_by_name.items()
    }


@pytest.mark.parametrize("validate_only", [False, True])
def test_new_topics_take_as_many_as_they_have_partitions(
    driver: CoreDriver, validate_only: bool
) -> None:
    """What is only validated counts too, and what is refused for another reason does not."""
    topics = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in (("x", 2), ("a", 1), ("y", 3), ("z", 1))
    ]
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    errors, quota = asked(driver, request, "topics", left=4)
    assert errors == [NONE, ErrorCode.TOPIC_ALREADY_EXISTS, THROTTLED, NONE]
    assert quota.asked == [2, 3, 1]
    made = {} if validate_only else {"x": 2, "z": 1}
    assert sizes(driver) == {"a": 2, "b": 3, "c": 1, **made}


def test_deleted_topics_take_as_many_as_they_had(driver: CoreDriver) -> None:
    request = DeleteTopicsRequest(topic_names=["a", "absent", "b", "c"])
    errors, quota = asked(driver, request, "responses", left=3)
    assert errors == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, THROTTLED, NONE]
    assert quota.asked == [2, 3, 1]
    assert sizes(driver) == {"b": 3}


@pytest.mark.parametrize("validate_only", [False, True])
def test_added_partitions_take_as_many_as_they_are(driver: CoreDriver, validate_only: bool) -> None:
    topics = [
        CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in (("a", 4), ("b", 3), ("c", 4))
    ]
    request = CreatePartitionsRequest(topics=topics, validate_only=validate_only)
    errors, quota = asked(driver, request, "results", left=4)
    assert errors == [NONE, ErrorCode.INVALID_PARTITIONS, THROTTLED]
    assert quota.asked == [2, 3]
    assert sizes(driver) == {"a": 2 if validate_only else 4, "b": 3, "c": 1}
