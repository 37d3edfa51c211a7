"""Settings in all spellings: what wins, what excludes what, what is shown and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.client import (
    AdminConfig,
    ClientConfig,
    ConfigurationError,
    ConsumerConfig,
    ProducerConfig,
    UnusedSetting,
)
from moldau.config.validators import duration_ms

PRODUCER = {"bootstrap.servers": "a:1"}


def producer(**settings: object) -> ProducerConfig:
    return ProducerConfig.from_properties({**PRODUCER, **settings})


def consumer(**settings: object) -> ConsumerConfig:
    return ConsumerConfig.from_properties({**PRODUCER, **settings})


def test_text_and_typed_values_in_either_spelling_mean_the_same():
    dotted = ProducerConfig.from_properties(
        {"bootstrap.servers": ["a:1"], "linger.ms": " 7 ", "enable.idempotence": "FALSE"}
    )
    assert dotted == ProducerConfig("a:1", linger_ms=7, enable_idempotence=False)
    assert dotted.properties() == {
        "bootstrap.servers": ("a:1",),
        "linger.ms": 7,
        "enable.idempotence": False,
    }
    assert dotted != ProducerConfig("a:1", linger_ms=8, enable_idempotence=False)
    assert dotted.given == {"bootstrap_servers", "linger_ms", "enable_idempotence"}


def test_keywords_win_over_the_mapping_and_addresses_over_both():
    made = ProducerConfig.resolve(
        "c:3", {"bootstrap.servers": "a:1", "linger.ms": 1, "acks": "1"}, {"linger_ms": 2}
    )
    assert (made.bootstrap_servers, made.linger_ms, made.acks) == (("c:3",), 2, "1")
    again = ProducerConfig.resolve("", made, {"acks": "all"})
    assert (again.bootstrap_servers, again.linger_ms, again.acks) == (("c:3",), 2, "all")
    assert again.enable_idempotence
    assert ProducerConfig.resolve("", made, {}) is made


def test_another_clients_configuration_lends_what_both_have():
    lent = ConsumerConfig.resolve("", ProducerConfig("a:1", linger_ms=1, client_id="me"), {})
    assert (lent.bootstrap_servers, lent.client_id) == (("a:1",), "me")


def test_what_is_no_configuration():
    with pytest.raises(ConfigurationError, match="config is a list"):
        ProducerConfig.resolve("a:1", [], {})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="name of a setting is text"):
        ProducerConfig.from_properties({3: "x"})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match=r"linger\.ms is given twice"):
        producer(**{"linger.ms": 1, "linger_ms": 1})


def test_a_configuration_cannot_be_changed():
    made = producer()
    with pytest.raises(AttributeError, match="cannot be changed"):
        made.linger_ms = 3
    with pytest.raises(AttributeError, match="cannot be changed"):
        del made.linger_ms


def test_secrets_are_never_shown():
    made = producer(
        **{
            "sasl.password": "hunter2",
            "ssl.keystore.key": "-----BEGIN hunter2",
            "sasl.jaas.config": "hunter2",
            "sasl.username": "me",
        }
    )
    assert "hunter2" not in repr(made)
    assert "sasl_username='me'" in repr(made)
    with pytest.raises(ConfigurationError) as caught:
        producer(**{"sasl.password": ["hunter2"]})
    assert "hunter2" not in str(caught.value)


def test_a_key_of_another_client():
    with pytest.warns(UnusedSetting, match=r"without effect here: group\.id"):
        producer(**{"group.id": "g"})
    with pytest.raises(ConfigurationError, match="a setting of the consumer, not the producer"):
        producer(group_id="g")
    with pytest.raises(ConfigurationError, match="a setting of the admin client"):
        ClientConfig("a:1", bootstrap_controllers="b:1")  # type: ignore[call-arg]


def test_one_warning_for_all_that_has_no_effect():
    with pytest.warns(UnusedSetting) as caught:
        producer(**{"interceptor.classes": "x.Y", "metrics.num.samples": "3"})
    assert [str(each.message) for each in caught] == [
        "without effect here: interceptor.classes, metrics.num.samples"
    ]


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("linger.ms", "-1", "a whole number of ms from 0"),
        ("linger.ms", 1.5, "a whole number"),
        ("linger.ms", True, "a whole number"),
        ("linger.ms", None, "a whole number"),
        ("batch.size", 2**31, "a whole number of bytes from 0 to 2147483647"),
        ("acks", "2", "one of all, -1, 0, 1"),
        ("acks", True, "one of all"),
        ("compression.type", "brotli", "one of none, gzip, snappy, lz4, zstd"),
        ("compression.gzip.level", 0, "1 to 9, or -1"),
        ("compression.zstd.level", 23, "from -131072 to 22"),
        ("enable.idempotence", "yes", "true or false"),
        ("transactional.id", "", "text that is not empty"),
        ("client.id", 7, "text"),
        ("bootstrap.servers", 7, "a list of texts"),
        ("sasl.login.refresh.window.factor", "2", "a number from 0.5 to 1.0"),
        ("sasl.login.refresh.window.factor", "x", "a number from 0.5 to 1.0"),
        ("security.protocol", "TLS", "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("ssl.context", "x", "an ssl.SSLContext"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(key: str, value: Any, allowed: str):
    with pytest.raises(ConfigurationError, match=allowed) as caught:
        ProducerConfig.from_properties({**PRODUCER, key: value})
    assert str(caught.value).startswith(f"{key}=")


def test_longer_than_any_timer():
    assert producer(**{"max.block.ms": 2**63 - 1}).max_block_ms == 2**31 - 1
    with pytest.raises(ConfigurationError, match=r"max\.block\.ms"):
        producer(**{"max.block.ms": 2**63})


def test_pauses_grow_to_at_least_the_first():
    made = producer(**{"retry.backoff.ms": 5_000, "reconnect.backoff.ms": 7_000})
    assert (made.retry_backoff_max_ms, made.reconnect_backoff_max_ms) == (5_000, 7_000)


@pytest.mark.parametrize("settings", [{"acks": "1"}, {"acks": 0}, {"retries": 0}])
def test_idempotence_gives_way_only_when_it_is_not_set(settings: dict[str, object]):
    assert producer().enable_idempotence
    assert not producer(**settings).enable_idempotence
    with pytest.raises(ConfigurationError, match=r"enable\.idempotence needs acks=all"):
        producer(**settings, **{"enable.idempotence": True})
    with pytest.raises(ConfigurationError, match=r"transactional\.id needs"):
        producer(**settings, **{"transactional.id": "t"})


def test_what_a_producer_refuses_together():
    with pytest.raises(ConfigurationError, match=r"at most 5 with enable\.idempotence"):
        producer(**{"max.in.flight.requests.per.connection": 6})
    assert producer(
        **{"max.in.flight.requests.per.connection": 6, "enable.idempotence": "false"}
    ).max_in_flight_requests_per_connection == (6)
    with pytest.raises(ConfigurationError, match=r"transactional\.id needs enable\.idempotence"):
        producer(**{"transactional.id": "t", "enable.idempotence": False})
    with pytest.raises(ConfigurationError, match="KIP-939"):
        producer(**{"transaction.two.phase.commit.enable": True, "transaction.timeout.ms": 60_000})


def test_acks_have_one_spelling_inside():
    assert [producer(acks=given).required_acks for given in ("all", "-1", -1, "1", 0)] == [
        -1,
        -1,
        -1,
        1,
        0,
    ]
    assert producer(acks=-1).acks == "all"


def test_the_delivery_timeout_covers_linger_and_a_request():
    assert producer(**{"request.timeout.ms": 200_000}).delivery_timeout_ms == 200_005
    with pytest.raises(ConfigurationError, match="which is 30005"):
        producer(**{"delivery.timeout.ms": 30_000})


def test_without_a_group_nothing_is_committed():
    assert not consumer().enable_auto_commit
    assert consumer(**{"group.id": "g"}).enable_auto_commit
    with pytest.raises(ConfigurationError, match=r"needs a group\.id"):
        consumer(**{"enable.auto.commit": True})
    with pytest.raises(ConfigurationError, match="without a group"):
        consumer(**{"group.id": ""})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.timeout.ms", 10_000),
        ("heartbeat.interval.ms", 1_000),
        ("partition.assignment.strategy", "range"),
    ],
)
def test_what_the_brokers_decide_cannot_be_set(key: str, value: object):
    with pytest.raises(ConfigurationError, match=f"{key} cannot be set"):
        consumer(**{"group.protocol": "CONSUMER", "group.id": "g", key: value})


def test_what_only_one_group_protocol_has():
    assert consumer(**{"group.protocol": "consumer", "group.remote.assignor": "uniform"})
    with pytest.raises(ConfigurationError, match=r"group\.remote\.assignor cannot be set"):
        consumer(**{"group.remote.assignor": "uniform"})
    with pytest.raises(ConfigurationError, match="less than"):
        consumer(**{"heartbeat.interval.ms": 45_000})
    with pytest.raises(ConfigurationError, match="at least one"):
        consumer(**{"partition.assignment.strategy": ""})


def test_assignors_are_names_classes_or_objects():
    assert consumer(
        **{"partition.assignment.strategy": "range, x.Y"}
    ).partition_assignment_strategy == ("range", "x.Y")
    assert ConsumerConfig("a:1", partition_assignment_strategy=[int]).partition_assignment_strategy
    assert consumer(**{"partition.assignment.strategy": int}).partition_assignment_strategy == (
        int,
    )


def test_the_fetch_buffer_is_twice_a_fetch():
    assert consumer(**{"fetch.max.bytes": 1_000}).fetch_buffer_bytes == 2_000
    assert consumer(**{"fetch.buffer.bytes": "5"}).fetch_buffer_bytes == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1H", 3_600_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0.001s", 1),
        ("P2D", 172_800_000),
        ("PT0S", 0),
        ("PT", None),
        ("P", None),
        ("P1DT", None),
        ("-PT1H", None),
        ("PT-1H", None),
        ("1h", None),
        ("P1Y", None),
    ],
)
def test_durations(text: str, expected: int | None):
    assert duration_ms(text) == expected
    given = {"auto.offset.reset": f"by_duration:{text}"}
    if expected is None:
        with pytest.raises(ConfigurationError, match=r"auto\.offset\.reset"):
            consumer(**given)
    else:
        assert consumer(**given).auto_offset_reset == f"by_duration:{text}"


def test_reset_is_spelled_as_in_kafka():
    with pytest.raises(ConfigurationError, match="latest, earliest, none"):
        consumer(**{"auto.offset.reset": "EARLIEST"})


def test_an_unknown_key_in_a_mapping_names_the_nearest_dotted_one():
    with pytest.raises(ConfigurationError, match=r"did you mean linger\.ms\?"):
        producer(**{"linger.mss": 1})
    with pytest.raises(ConfigurationError, match=r"did you mean bootstrap_controllers\?"):
        AdminConfig("a:1", bootstrap_controler="b:1")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"setting; docs/compatibility\.md lists them$"):
        ProducerConfig("a:1", zzz="b")  # type: ignore[call-arg]
