"""Brokers that stop: what their heartbeats are answered, and what the others must have read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from tests.unit.metadata.builders import CoreDriver, registration


@pytest.fixture
def driver() -> CoreDriver:
    """Broker 1 leads two partitions, broker 2 one."""
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    driver.topic("t", [1, 2], [1, 2], [2, 1])
    return driver


def answer(response: Any) -> tuple[bool, bool, bool]:
    """Whether the broker has caught up, is fenced, and may stop."""
    assert response.error_code == 0
    return response.is_caught_up, response.is_fenced, response.should_shut_down


def state(driver: CoreDriver, broker_id: int = 1) -> tuple[bool, bool]:
    """Whether it is fenced, and whether it is shutting down."""
    broker = driver.image.cluster.brokers[broker_id]
    return broker.fenced, broker.in_controlled_shutdown


def test_the_others_have_to_read_the_last_record_of_the_shutdown(driver: CoreDriver) -> None:
    before = driver.log_end_offset
    driver.beat(1, want_shut_down=True)
    last = driver.log_end_offset - 1
    assert last == before + 3, "three partitions and the broker"
    for read in range(before - 1, last):
        driver.beat(2, current_metadata_offset=read)
        assert answer(driver.beat(1, want_shut_down=True)) == (True, False, False)
        assert not driver.appended
    driver.beat(2, current_metadata_offset=last)
    assert answer(driver.beat(1, want_shut_down=True)) == (True, True, True)


def test_a_broker_that_shuts_down_is_not_waited_for(driver: CoreDriver) -> None:
    known = driver.log_end_offset - 1
    driver.beat(1, want_shut_down=True)
    driver.beat(2, want_shut_down=True, current_metadata_offset=known)
    assert state(driver, 2) == (False, True)
    assert answer(driver.beat(1, want_shut_down=True)) == (True, True, True)


def test_a_heartbeat_without_a_wish_leaves_a_shutdown_as_it_is(driver: CoreDriver) -> None:
    driver.beat(1, want_shut_down=True)
    assert answer(driver.beat(1)) == (True, False, False)
    assert not driver.appended
    assert state(driver) == (False, True)


def test_a_broker_that_shuts_down_may_be_fenced_on_its_wish(driver: CoreDriver) -> None:
    driver.beat(1, want_shut_down=True)
    driver.beat(2)
    assert answer(driver.beat(1, want_fence=True)) == (True, True, True)
    assert state(driver)[0]


def test_an_incarnation_that_shut_down_does_not_come_back(driver: CoreDriver) -> None:
    driver.beat(1, want_shut_down=True)
    driver.beat(2)
    driver.beat(1, want_shut_down=True)
    assert state(driver) == (True, True)
    assert answer(driver.beat(1)) == (True, True, False)
    assert not driver.appended
    epoch = driver.broker_epoch(1)
    driver.join(1, incarnation_id=UUID(int=0x77), previous_broker_epoch=epoch)
    assert state(driver) == (False, False)


@pytest.mark.parametrize("want_shut_down", [False, True])
def test_a_wish_to_be_fenced_is_met_at_once(driver: CoreDriver, want_shut_down: bool) -> None:
    wishes = {"want_fence": True, "want_shut_down": want_shut_down}
    assert answer(driver.beat(1, **wishes)) == (True, True, want_shut_down)
    assert state(driver) == (True, False)
    assert [driver.partition(index=index).leader for index in range(3)] == [2, 2, 2]
    assert answer(driver.beat(1, **wishes)) == (True, True, want_shut_down)
    assert not driver.appended, "it is fenced already"


@pytest.mark.parametrize(
    ("wishes", "outcome"),
    [
        ({}, (True, False)),
        ({"want_shut_down": True}, (True, True)),
        ({"want_fence": True}, (True, False)),
    ],
)
@pytest.mark.parametrize("is_fenced", [True, False])
@pytest.mark.parametrize("ahead", [-1, 0, 1])
def test_a_broker_has_caught_up_when_it_has_read_its_registration(
    wishes: dict[str, bool], outcome: tuple[bool, bool], is_fenced: bool, ahead: int
) -> None:
    driver = CoreDriver()
    epoch = driver.ask(registration(1)).broker_epoch
    if not is_fenced:
        driver.beat(1)
    request = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=epoch, current_metadata_offset=epoch + ahead, **wishes
    )
    response = driver.ask(request)
    assert response.is_caught_up is (ahead >= 0)
    comes_in = not wishes and (not is_fenced or ahead >= 0)
    assert response.is_fenced is not comes_in
    assert response.should_shut_down is outcome[1]
    assert state(driver)[0] is not comes_in


@pytest.mark.parametrize("ahead", [-1, 0])
def test_a_broker_that_leads_is_answered_whether_it_has_caught_up(ahead: int) -> None:
    driver = CoreDriver()
    epoch = driver.join(1)
    driver.join(2)
    driver.topic("t", [1, 2])
    response = driver.beat(1, want_shut_down=True, current_metadata_offset=epoch + ahead)
    assert answer(response) == (ahead == 0, False, False)


def test_a_second_process_waits_while_the_first_one_is_only_fenced(driver: CoreDriver) -> None:
    """Fenced on its wish without leave to stop: it is alive, and may come back."""
    driver.beat(1, want_fence=True)
    other = registration(1, incarnation_id=UUID(int=0x77))
    assert driver.ask(other).error_code != 0
    driver.beat(1, want_shut_down=True)
    assert driver.ask(other).error_code == 0
