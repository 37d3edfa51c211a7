"""`moldau consume --key`, `--grep` and `--where`, on a topic of three partitions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moldau.client import NewTopic, TopicPartition
from moldau.client.sync import Admin, Consumer, Producer
from moldau.testing import Cluster
from tests.system.cli.conftest import FAILED, WRONG_USAGE, Cli

TOPIC = "filtered"
COUNT = 3_000
WHOLE = (TOPIC, "--from-beginning", "--until-end")


@pytest.fixture(scope="module", autouse=True)
def records(cluster: Cluster) -> None:
    """Records of users 0 to 9, by turns; each tenth is no JSON."""
    with Admin(cluster.bootstrap_server) as admin:
        admin.create_topics([NewTopic(TOPIC, partition_count=3, configs={"retention.ms": "-1"})])
    with Producer(cluster.bootstrap_server) as producer:
        for number in range(COUNT):
            value = json.dumps({"n": number, "user": {"id": number % 10}, "tags": ["é"]}).encode()
            producer.send(
                TOPIC,
                b"plain" if number % 10 == 9 else value,
                key=b"key-%d" % (number % 50),
                partition=number % 3,
                headers=[("turn", b"%d" % (number // 1_000))],
                timestamp_ms=number,
            )
        producer.flush()


def found(cli: Cli, *arguments: object) -> list[dict[str, Any]]:
    output = cli.ok("consume", *WHOLE, *arguments, "--json")
    return sorted(map(json.loads, output.splitlines()), key=lambda each: each["timestamp"])


def test_records_of_one_key_from_all_partitions(cli: Cli):
    keyed = found(cli, "--key", "key-7")
    assert [each["timestamp"] for each in keyed] == list(range(7, COUNT, 50))
    assert {each["partition"] for each in keyed} == {0, 1, 2}


def test_text_is_looked_for_in_keys_values_and_headers(cli: Cli):
    assert len(found(cli, "--grep", '"n": 17,')) == 1
    assert len(found(cli, "--grep", "key-49")) == COUNT // 50
    assert len(found(cli, "--grep", "plain")) == COUNT // 10
    in_header = found(cli, "--grep", "2", "--where", "value == 'plain' and not key contains '2'")
    assert min(each["timestamp"] for each in in_header) == 2_009
    assert len(in_header) == 80


def test_conditions_look_into_json_and_headers(cli: Cli):
    where = "value.user.id in [3, 4] and value.n >= 2990 and headers.turn == 2 and partition != 0"
    assert [each["timestamp"] for each in found(cli, "--where", where)] == [2_993]
    assert len(found(cli, "--where", "value.tags contains 'é'")) == COUNT * 9 // 10
    assert len(found(cli, "--where", 'timestamp < "1970-01-01T00:00:01Z"')) == 1_000


def test_all_filters_that_are_given_hold(cli: Cli):
    both = found(cli, "--key", "key-7", "--grep", '"n": 2', "--where", "value.n > 2000")
    assert [each["timestamp"] for each in both] == list(range(2_007, COUNT, 50))


def test_a_count_is_of_records_that_match(cli: Cli):
    arguments = ("consume", TOPIC, "--from-beginning", "-n", 5, "--where", "value.user.id == 3")
    assert len(cli.ok(*arguments, "-f", "%o %k\n").splitlines()) == 5
    ended = cli.end("consume", *WHOLE, "-n", 5, "--where", "value.n < 3")
    assert ended.status == FAILED
    assert len(ended.output.splitlines()) == 3
    assert ended.errors == "moldau: 3 of 5 records were there among 3,000\n"


def test_a_place_to_begin_is_before_the_filter(cli: Cli):
    arguments = (TOPIC, "--partition", 1, "--until-end", "--where", "value.user.id == 8")
    assert len(cli.ok("consume", *arguments, "--offset", -100, "-f", "%o\n").splitlines()) == 10
    output = cli.ok("consume", *arguments, "--timestamp", 2_900, "-f", "%T ")
    assert output.split() == ["2908", "2938", "2968", "2998"]


def test_the_end_says_when_nothing_matched(cli: Cli):
    ended = cli.end("consume", *WHOLE, "--key", "no-such-key")
    assert (ended.status, ended.output) == (0, "")
    assert ended.errors == "moldau: none of 3,000 records matched\n"


def test_a_group_goes_on_behind_the_last_record_that_was_wanted(cli: Cli, cluster: Cluster):
    reading = (TOPIC, "--group", "searching", "--from-beginning", "--until-end", "-f", "%T ")
    where = ("--where", "value.n >= 1500 and value.user.id == 0")
    first = [int(each) for each in cli.ok("consume", *reading, *where, "-n", 10).split()]
    assert len(first) == 10
    with Consumer(cluster.bootstrap_server, group_id="searching") as consumer:
        partitions = [TopicPartition(TOPIC, each) for each in range(3)]
        committed = {each: at for each, at in consumer.committed(partitions).items() if at}
    for partition, at in committed.items():
        of_partition = [each for each in first if each % 3 == partition.partition]
        assert at.offset == max(of_partition) // 3 + 1
    rest = [int(each) for each in cli.ok("consume", *reading, *where).split()]
    assert sorted(first + rest) == list(range(1_500, COUNT, 10))


def test_typed_keys_and_values_are_filtered_as_what_they_mean(cli: Cli, cluster: Cluster):
    with Producer(cluster.bootstrap_server) as producer:
        for number in (-5, 1, 300):
            producer.send("longs", number.to_bytes(8, signed=True), key=b"\0\0\0\1", partition=0)
        producer.flush()
    typed = ("longs", "--from-beginning", "--until-end", "--value-format", "long")
    assert cli.ok("consume", *typed, "--where", "value < 100 and value != 1") == "-5\n"
    assert cli.ok("consume", *typed, "--grep", "30") == "300\n"
    assert cli.ok("consume", *typed, "--key-format", "integer", "--key", 1, "-n", 1) == "-5\n"
    ended = cli.end("consume", *typed, "--key-format", "long", "--where", "key > 0")
    assert ended.status == FAILED
    assert "longs, partition 0, offset 0: the key as long" in ended.errors


def test_a_wrong_condition_is_shown_with_a_caret(cli: Cli):
    ended = cli.end("consume", TOPIC, "--where", "value.user.id == 7 and vlaue.n > 3")
    assert (ended.status, ended.output) == (WRONG_USAGE, "")
    assert ended.errors.splitlines() == [
        "moldau: --where: there is no field vlaue; did you mean value?",
        "  value.user.id == 7 and vlaue.n > 3",
        "                         ^",
    ]
    assert cli.refused("consume", TOPIC, "--grep", "", status=WRONG_USAGE).endswith("some text")
