"""Options in general: names, kinds, ranges, and the nearest name."""

from __future__ import annotations

import pytest

from moldau.spark_connector.errors import InvalidOption
from moldau.spark_connector.options import OptionReader


def reader(given):
    return OptionReader(
        given,
        known=("minPartitions", "includeHeaders", "maxTriggerDelay"),
        elsewhere={"sinkId": "it belongs to the sink"},
        refused_kafka={"enable.auto.commit": "nothing is committed"},
        what="source",
    )


def test_names_have_no_case():
    assert reader({"MINpartitions": "3"}).whole_number("minPartitions", lowest=1) == 3
    assert reader({"minpartitions": "3"}).has("minPartitions")
    assert reader({}).whole_number("minPartitions", lowest=1) is None


def test_the_nearest_name_is_suggested_as_it_is_documented():
    with pytest.raises(InvalidOption, match=r"minpartition: .*did you mean minPartitions\?"):
        reader({"minPartition": "3"})


def test_where_nothing_is_near_all_are_listed():
    with pytest.raises(InvalidOption, match=r"there are includeHeaders, maxTrigg.*, and kafka\.\*"):
        reader({"zzz": "3"})


def test_options_of_another_place_say_where():
    with pytest.raises(InvalidOption, match="sinkId is not an option of the source: it belongs"):
        reader({"sinkid": "x"})


def test_refused_keys_of_the_client_say_why():
    with pytest.raises(InvalidOption, match=r"kafka.enable.auto.commit is not supported: nothing"):
        reader({"kafka.enable.auto.commit": "false"})


def test_keys_of_the_client_lose_their_prefix():
    settings = reader({"kafka.bootstrap.servers": "h:1", "kafka.client.id": "c"}).kafka_settings()
    assert settings == {"bootstrap.servers": "h:1", "client.id": "c"}


@pytest.mark.parametrize("given", [{}, {"kafka.bootstrap.servers": " "}])
def test_the_servers_are_needed(given):
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers is missing"):
        reader(given).kafka_settings()


@pytest.mark.parametrize("text", ["", "x", "1.5", "0", "-1", "1e3", "²", "9" * 30])
def test_numbers_outside_their_range(text):
    with pytest.raises(InvalidOption, match=r"minPartitions=.*: a whole number from 1 to"):
        reader({"minPartitions": text}).whole_number("minPartitions", lowest=1)


def test_true_and_false_in_any_case_and_nothing_else():
    assert reader({"includeHeaders": "TRUE"}).boolean("includeHeaders", False)
    assert not reader({"includeHeaders": " false "}).boolean("includeHeaders", True)
    assert reader({}).boolean("includeHeaders", True)
    with pytest.raises(InvalidOption, match="includeHeaders='yes': true or false"):
        reader({"includeHeaders": "yes"}).boolean("includeHeaders", False)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("15m", 900_000),
        ("15min", 900_000),
        ("30s", 30_000),
        ("500ms", 500),
        ("1500us", 1),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("250", 250),
        (" 5S ", 5_000),
    ],
)
def test_times_have_sparks_units(text, duration_ms):
    assert reader({"maxTriggerDelay": text}).duration_ms("maxTriggerDelay", 1) == duration_ms


@pytest.mark.parametrize("text", ["", "m", "5 m", "-1s", "1.5s", "5weeks"])
def test_times_that_are_none(text):
    with pytest.raises(InvalidOption, match=r"maxTriggerDelay=.*15m or 500ms"):
        reader({"maxTriggerDelay": text}).duration_ms("maxTriggerDelay", 1)


def test_choices_are_spelled_as_documented():
    assert reader({"includeHeaders": "Latest"}).choice("includeHeaders", "error", "latest") == (
        "latest"
    )
    with pytest.raises(InvalidOption, match="one of error, latest"):
        reader({"includeHeaders": "none"}).choice("includeHeaders", "error", "error", "latest")
