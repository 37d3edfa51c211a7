"""What a registration needs, what it says, and what it keeps of the one before: brokers' and
controllers'.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.controller.core.state import is_named_directory
from moldau.metadata.features import SUPPORTED_FEATURES
from moldau.metadata.image import LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p62_broker_registration import Feature, Listener
from moldau.protocol.messages.p70_controller_registration import ControllerRegistrationRequest
from tests.unit.metadata.builders import CoreDriver, directory_id, registration

NONE = ErrorCode.NONE
FIRST, SECOND = directory_id(1, 0), directory_id(1, 1)


def features(**ranges: tuple[int, int] | None) -> list[Feature]:
    """Ranges of all features, but for those named; None: the node does not know the feature."""
    wanted: dict[str, tuple[int, int] | None] = {
        name: (levels.minimum_level, levels.maximum_level)
        for name, levels in SUPPORTED_FEATURES.items()
    }
    wanted |= {name.replace("_", "."): levels for name, levels in ranges.items()}
    return [
        Feature(name=name, min_supported_version=levels[0], max_supported_version=levels[1])
        for name, levels in wanted.items()
        if levels is not None
    ]


@pytest.mark.parametrize(
    ("ranges", "error"),
    [
        ({"metadata_version": (30, 30), "group_version": (1, 1)}, NONE),
        ({"metadata_version": (7, 29)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"metadata_version": (31, 31)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"group_version": (0, 0)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"group_version": (2, 2)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"group_version": None}, ErrorCode.UNSUPPORTED_VERSION),
        ({"share_version": None}, NONE),
    ],
)
def test_brokers_and_controllers_support_every_finalized_level(
    ranges: dict[str, Any], error: ErrorCode
) -> None:
    driver = CoreDriver()
    assert driver.ask(registration(1, features=features(**ranges))).error_code == error
    controller = ControllerRegistrationRequest(
        controller_id=3, incarnation_id=UUID(int=9), features=features(**ranges)
    )
    answer = driver.ask(controller)
    assert answer.error_code == error
    assert (answer.error_message is None) is (error is NONE)
    image = driver.image.cluster
    assert (set(image.brokers), set(image.controllers)) == (
        ({1}, {3}) if error is NONE else (set(), set())
    )


@pytest.mark.parametrize(
    ("release", "error"), [("3.6-IV2", ErrorCode.UNSUPPORTED_VERSION), ("3.7-IV0", NONE)]
)
def test_controllers_register_from_the_level_that_has_records_for_them(
    release: str, error: ErrorCode
) -> None:
    driver = CoreDriver(release=release)
    request = ControllerRegistrationRequest(
        controller_id=3, incarnation_id=UUID(int=9), features=features()
    )
    assert driver.ask(request).error_code == error
    assert bool(driver.appended) is (error is NONE)


@pytest.mark.parametrize(
    ("release", "error"), [("3.7-IV1", NONE), ("3.7-IV2", ErrorCode.INVALID_REGISTRATION)]
)
def test_brokers_name_their_directories_from_the_level_that_has_records_for_them(
    release: str, error: ErrorCode
) -> None:
    driver = CoreDriver(release=release)
    driver.join(2)
    assert driver.ask(registration(1, log_dirs=[])).error_code == error


def test_a_listener_named_twice_is_refused() -> None:
    driver = CoreDriver()
    listeners = [Listener(name=name, host="h", port=9092) for name in ("A", "B", "A")]
    refused = driver.ask(registration(1, listeners=listeners))
    assert refused.error_code == ErrorCode.INVALID_REGISTRATION
    assert driver.ask(registration(1, listeners=listeners[:2])).error_code == NONE


def test_the_first_broker_may_have_the_id_0() -> None:
    driver = CoreDriver()
    driver.join(0)
    assert not driver.image.cluster.brokers[0].fenced


def test_the_same_incarnation_keeps_its_state_and_another_one_begins_again() -> None:
    driver = CoreDriver()
    driver.join(1, log_dirs=[FIRST, SECOND])
    driver.join(2)
    driver.topic("t", [1, 2])
    driver.beat(1, cordoned_log_dirs=[SECOND])
    driver.beat(1, want_shut_down=True)
    same = registration(1, log_dirs=[FIRST, SECOND], rack="moved")
    assert driver.ask(same).error_code == NONE
    broker = driver.image.cluster.brokers[1]
    assert (broker.rack, broker.cordoned_directories) == ("moved", (SECOND,))
    assert (broker.fenced, broker.in_controlled_shutdown) == (False, True)
    other = registration(1, log_dirs=[FIRST, SECOND], incarnation_id=UUID(int=0x77))
    assert driver.ask(other).error_code == NONE, "it may come back before its session ends"
    broker = driver.image.cluster.brokers[1]
    assert broker.cordoned_directories is None
    assert (broker.fenced, broker.in_controlled_shutdown) == (True, False)


def test_a_registration_that_brings_no_directory_back_holds_no_election() -> None:
    driver = CoreDriver()
    driver.join(1, log_dirs=[FIRST, SECOND])
    driver.join(2)
    driver.topic("t", [2])
    driver.beat(2, want_fence=True)
    driver.run_tasks()
    for log_dirs in ([FIRST, SECOND], [FIRST]):
        assert driver.ask(registration(1, log_dirs=log_dirs)).error_code == NONE
        due_ms = driver.core.tasks.next_due_ms()
        assert due_ms is not None
        assert due_ms > driver.now_ms


@pytest.mark.parametrize(
    ("directory", "registered", "is_named"),
    [
        (FIRST, {FIRST}, True),
        (FIRST, {SECOND}, False),
        (FIRST, (), True),
        (UNASSIGNED_DIRECTORY, {SECOND}, True),
        (MIGRATING_DIRECTORY, {SECOND}, True),
        (MIGRATING_DIRECTORY, (), True),
        (LOST_DIRECTORY, {SECOND}, False),
        (LOST_DIRECTORY, (), False),
    ],
)
def test_a_replica_lies_where_its_broker_has_registered_a_directory(
    directory: UUID, registered: Any, is_named: bool
) -> None:
    assert is_named_directory(directory, registered) is is_named


def create(driver: CoreDriver, name: str, partitions: int = 1, replicas: int = 1) -> int:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    (answer,) = driver.ask(CreateTopicsRequest(topics=[topic])).topics
    return int(answer.error_code)


def test_a_broker_with_a_directory_that_is_not_cordoned_gets_replicas() -> None:
    driver = CoreDriver()
    driver.join(1, log_dirs=[FIRST, SECOND])
    driver.beat(1, cordoned_log_dirs=[FIRST])
    assert create(driver, "t") == NONE
    driver.beat(1, cordoned_log_dirs=[SECOND, FIRST])
    assert create(driver, "u") == ErrorCode.INVALID_REPLICATION_FACTOR
    driver.beat(1, cordoned_log_dirs=[])
    assert create(driver, "u") == NONE


@pytest.mark.parametrize(
    ("release", "directory"), [("3.7-IV1", MIGRATING_DIRECTORY), ("3.7-IV2", FIRST)]
)
def test_new_replicas_name_directories_from_the_level_that_has_a_place_for_them(
    release: str, directory: UUID
) -> None:
    driver = CoreDriver(release=release)
    driver.join(1)
    assert create(driver, "t") == NONE
    assert driver.partition().directories == (directory,)


def test_a_broker_that_registered_before_there_were_directories_has_none_to_name() -> None:
    driver = CoreDriver(release="3.6")
    driver.join(1)
    key = FeatureUpdateKey(feature="metadata.version", max_version_level=20)
    assert driver.ask(UpdateFeaturesRequest(feature_updates=[key])).error_code == NONE
    assert driver.image.cluster.brokers[1].directories == ()
    assert create(driver, "t") == NONE
    assert driver.partition().directories == (MIGRATING_DIRECTORY,)
    assert driver.partition().leader == 1
