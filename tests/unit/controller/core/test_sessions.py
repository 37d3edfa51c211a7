"""Sessions of brokers, what a shutdown waits for, and limits of client metrics, at each edge."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.config import ConfigError
from moldau.controller.core.cluster_control import BrokerHeartbeats
from moldau.controller.core.configuration_control import validate_client_metrics_config
from moldau.metadata.image import MetadataImage
from moldau.protocol.metadata_records import RegisterBrokerRecord
from tests.unit.metadata.builders import replay

SESSION_MS = 100


def image(**fenced: bool) -> MetadataImage:
    """Brokers `b1`, `b2`, … of epoch 10 times their id."""
    records = [
        RegisterBrokerRecord(
            broker_id=int(name[1:]),
            broker_epoch=10 * int(name[1:]),
            incarnation_id=UUID(int=int(name[1:])),
            fenced=is_fenced,
        )
        for name, is_fenced in fenced.items()
    ]
    return replay(MetadataImage.EMPTY, records)


def test_a_session_lasts_until_its_timeout() -> None:
    heartbeats = BrokerHeartbeats(SESSION_MS)
    brokers = image(b1=False, b2=True, b3=False)
    heartbeats.reset(brokers, 1000)
    assert [heartbeats.has_valid_session(1, at_ms) for at_ms in (1099, 1100)] == [True, False]
    assert not heartbeats.has_valid_session(2, 1000), "a fenced broker has to report first"
    assert heartbeats.next_expiry_ms(brokers) == 1100
    heartbeats.touch(3, 30, 1050)
    assert heartbeats.expired(brokers, 1099) == []
    assert heartbeats.expired(brokers, 1100) == [1]
    heartbeats.touch(1, 10, 1120)
    assert heartbeats.next_expiry_ms(brokers) == 1150
    assert heartbeats.expired(brokers, 1220) == [1, 3]
    assert heartbeats.expired(image(b1=True, b3=False), 1220) == [3]
    # The others are gone.
    assert heartbeats.expired(image(b1=False), 1220) == [1]
    assert heartbeats.next_expiry_ms(image(b2=True)) is None
    heartbeats.touch(2, 20, 1000)
    assert heartbeats.next_expiry_ms(image(b2=True)) is None


def test_a_broker_may_shut_down_when_every_live_one_has_read_that_it_leads_nothing() -> None:
    heartbeats = BrokerHeartbeats(SESSION_MS)
    brokers = image(b1=False, b2=False, b3=True)
    for broker_id in (1, 2, 3):
        heartbeats.touch(broker_id, 10 * broker_id, 0, 50)
    heartbeats.begin_controlled_shutdown(1, 60)
    heartbeats.begin_controlled_shutdown(9, 99)
    for at_1, at_2, may in [(60, 59, False), (0, 59, False), (0, 60, True)]:
        heartbeats.touch(1, 10, 0, at_1)
        heartbeats.touch(2, 20, 0, at_2)
        assert heartbeats.may_shut_down(1, brokers) is may
    assert heartbeats.may_shut_down(9, brokers)


def test_a_new_incarnation_has_read_nothing_yet() -> None:
    heartbeats = BrokerHeartbeats(SESSION_MS)
    brokers = image(b1=False, b2=False)
    heartbeats.touch(1, 10, 0, 70)
    heartbeats.touch(2, 20, 0, 70)
    heartbeats.begin_controlled_shutdown(1, 60)
    assert heartbeats.may_shut_down(1, brokers)
    heartbeats.touch(2, 21, 0)
    assert not heartbeats.may_shut_down(1, brokers)
    heartbeats.touch(2, 21, 0, 60)
    assert heartbeats.may_shut_down(1, brokers)


@pytest.mark.parametrize(
    ("key", "text", "is_legal"),
    [
        *[("interval.ms", text, True) for text in ("100", "3600000", " 100 ", "+100")],
        *[("interval.ms", text, False) for text in ("99", "3600001", "1e3", "", "-100")],
        ("match", "client_id=a.*, client_source_port=9", True),
        ("match", "", True),
        ("match", "client_id=", False),
        ("match", "other=a", False),
        ("metrics", "anything", True),
        ("other", "", False),
    ],
)
def test_keys_of_client_metrics(key: str, text: str, is_legal: bool) -> None:
    if is_legal:
        validate_client_metrics_config(key, text)
    else:
        with pytest.raises(ConfigError):
            validate_client_metrics_config(key, text)
