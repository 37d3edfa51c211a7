"""What a single group may override, checked at the controller."""

from __future__ import annotations

import pytest

from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from tests.unit.metadata.builders import CoreDriver

from .test_configs_and_features import DELETE, SET, alter, config

GROUP, BROKER = ConfigResourceType.GROUP, ConfigResourceType.BROKER
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    driver.join(1)
    return driver


def test_groups_are_configured_before_they_exist(driver: CoreDriver) -> None:
    result = alter(driver, GROUP, "team", (SET, SESSION, "50000"), (SET, HEARTBEAT, "6000"))
    assert result == (ErrorCode.NONE, None)
    assert config(driver, GROUP, "team") == {SESSION: "50000", HEARTBEAT: "6000"}
    assert alter(driver, GROUP, "team", (DELETE, SESSION, None))[0] is ErrorCode.NONE
    assert config(driver, GROUP, "team") == {HEARTBEAT: "6000"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (SESSION, "44999"),
        (SESSION, "60001"),
        (SESSION, "long"),
        (HEARTBEAT, "4999"),
        (HEARTBEAT, "15001"),
        (INTERVAL, "-1"),
        (INTERVAL, "15001"),
        ("share.isolation.level", "dirty"),
        ("share.auto.offset.reset", "by_duration:soon"),
        ("share.delivery.count.limit", "11"),
        ("streams.num.standby.replicas", "3"),
        ("consumer.sesion.timeout.ms", "50000"),
        ("retention.ms", "1"),
    ],
)
def test_what_no_group_may_have_is_refused(driver: CoreDriver, key: str, value: str) -> None:
    error, message = alter(driver, GROUP, "team", (SET, key, value))
    assert error is ErrorCode.INVALID_CONFIG
    assert message is not None
    assert key in message
    assert config(driver, GROUP, "team") == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (SESSION, "45000"),
        (SESSION, "60000"),
        (HEARTBEAT, "15000"),
        (INTERVAL, "0"),
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.isolation.level", "read_committed"),
        ("share.renew.acknowledge.enable", "false"),
        ("streams.num.standby.replicas", "2"),
    ],
)
def test_what_a_group_may_have_is_written(driver: CoreDriver, key: str, value: str) -> None:
    assert alter(driver, GROUP, "team", (SET, key, value))[0] is ErrorCode.NONE
    assert config(driver, GROUP, "team") == {key: value}


def test_groups_need_a_name(driver: CoreDriver) -> None:
    assert alter(driver, GROUP, "", (SET, SESSION, "50000"))[0] is ErrorCode.INVALID_REQUEST


def test_the_assignment_interval_is_a_dynamic_default_of_the_cluster(driver: CoreDriver) -> None:
    key = "group.consumer.assignment.interval.ms"
    assert alter(driver, BROKER, "", (SET, key, "200"))[0] is ErrorCode.NONE
