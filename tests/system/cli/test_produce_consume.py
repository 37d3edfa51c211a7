"""`moldau produce` and `moldau consume`: formats, positions, groups, transactions, ends."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from moldau.client import NewPartitions, NewTopic, TopicPartition
from moldau.client.sync import Admin, Consumer
from moldau.testing import Cluster
from tests.system.cli.conftest import WRONG_USAGE, Cli, heard
from tests.system.processes import Ended, without_slow_node

END_DEADLINE_S: Final = 60


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions for each test. It keeps records of 1970 too."""
    name = request.node.name.removeprefix("test_").partition("[")[0]
    with Admin(cluster.bootstrap_server) as admin:
        admin.create_topics([NewTopic(name, partition_count=2, configs={"retention.ms": "-1"})])
    return name


class Piped:
    """`moldau` with an input, as in a pipeline."""

    def __init__(self, cli: Cli) -> None:
        self.bootstrap = cli.bootstrap
        self.start = cli.start
        self.end = cli.end

    def run(
        self, *arguments: object, given: bytes = b"", status: int = 0
    ) -> tuple[bytes, list[str]]:
        """Run it to its end; its output, and the lines of stderr."""
        ended = self.end(*arguments, given=given)
        assert ended.status == status, ended.errors
        return ended.output_bytes, ended.errors.splitlines()

    def produce(self, *arguments: object, given: bytes) -> None:
        """Produce, silently."""
        assert self.run("produce", *arguments, given=given) == (b"", [])

    def consume(self, *arguments: object) -> bytes:
        """Consume everything that the topic has."""
        output, errors = self.run("consume", *arguments, "--until-end")
        assert errors == []
        return output


@pytest.fixture
def piped(cli: Cli) -> Piped:
    return Piped(cli)


def lines_of(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_lines_go_in_and_come_out(piped: Piped, topic: str):
    given = b"".join(b"%d\n" % number for number in range(5_000))
    piped.produce(topic, "--partition", 1, given=given)
    assert piped.consume(topic, "--from-beginning") == given
    assert piped.consume(topic, "--partition", 1, "--offset", 4_998) == b"4998\n4999\n"
    assert piped.consume(topic, "--partition", 1, "--offset", -2) == b"4998\n4999\n"
    assert piped.consume(topic, "--partition", 0, "--offset", "earliest") == b""
    assert piped.consume(topic) == b""


def test_a_carriage_return_stays_where_the_newline_is_given(piped: Piped, topic: str):
    piped.produce(topic, "--partition", 0, given=b"a\r\n")
    piped.produce(topic, "--partition", 0, "--delimiter", "\\n", given=b"b\r\n")
    assert piped.consume(topic, "--from-beginning") == b"a\nb\r\n"


def test_keys_headers_and_tombstones(piped: Piped, topic: str, tmp_path: Path):
    path = tmp_path / "input"
    path.write_bytes(b"a:1\na:NULL\n")
    piped.produce(
        topic, path, "--key-separator", ":", "--null-value", "NULL", "--header", "h=x", given=b""
    )
    fields = ("--fields", "key,value,headers", "--key-separator", "|", "--null-value", "-")
    assert piped.consume(topic, "--from-beginning", *fields) == b"a|1|h:x\na|-|h:x\n"


def test_one_key_for_all_records_that_have_none(piped: Piped, topic: str):
    piped.produce(topic, "-k", "17", given=b"paid\nsent\n")
    given = b'{"value": "v", "key": "own"}\n{"value": "w", "key": null}\n'
    piped.produce(topic, "--format", "json", "--key", "17", given=given)
    piped.produce(topic, "-k", "17", "--key-format", "integer", given=b"x\n")
    fields = ("--from-beginning", "--json")
    records = lines_of(piped.consume(topic, *fields))
    shown = {(each.get("key"), each.get("key_base64"), each["value"]) for each in records}
    assert shown == {
        *{("17", None, "paid"), ("17", None, "sent"), ("own", None, "v"), ("17", None, "w")},
        ("\0\0\0\x11", None, "x"),
    }
    said = piped.run("produce", topic, "-k", "x", "--key-format", "integer", status=2)[1]
    assert "the key b'x' as integer" in said[0]


def test_json_lines_survive_the_way_there_and_back(piped: Piped, topic: str, cluster: Cluster):
    first = [
        {"value": "v", "key": "k", "partition": 1, "timestamp": 1_700_000_000_000},
        {"value_base64": "AP8=", "partition": 1, "headers": [{"key": "h", "value_base64": "/w=="}]},
        {"value": None, "key": "k", "partition": 1},
        {"value": {"nested": [1, 2]}, "partition": 1},
    ]
    given = b"".join(json.dumps(each).encode() + b"\n" for each in first)
    piped.produce(topic, "--format", "json", given=given)
    shown = piped.consume(topic, "--from-beginning", "--json", "--json-values")
    documents = lines_of(shown)
    assert [each["offset"] for each in documents] == [0, 1, 2, 3]
    for document, each in zip(documents, first, strict=True):
        assert each.items() <= document.items()
    copy = f"{topic}_copy"
    with Admin(cluster.bootstrap_server) as admin:
        admin.create_topics([NewTopic(copy, partition_count=2)])
    piped.produce(copy, "--format", "json", given=shown)
    again = lines_of(piped.consume(copy, "--from-beginning", "--json", "--json-values"))
    assert [{**each, "topic": topic} for each in again] == documents


def test_raw_files_are_values(piped: Piped, topic: str, tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() + b"\n\0\xff")
    files = (tmp_path / "one", tmp_path / "two")
    piped.produce(topic, *files, "--format", "raw", "--partition", 0, given=b"")
    written = tmp_path / "written"
    arguments = ("--from-beginning", "--format", "raw", "--output", written)
    assert piped.consume(topic, *arguments) == b""
    assert written.read_bytes() == b"one\n\0\xfftwo\n\0\xff"


def test_a_group_goes_on_where_it_stopped(piped: Piped, topic: str):
    piped.produce(topic, "--partition", 0, given=b"1\n2\n3\n")
    group = ("--group", topic, "--from-beginning")
    assert piped.run("consume", topic, *group, "--max-messages", 2)[0] == b"1\n2\n"
    assert piped.consume(topic, *group) == b"3\n"


def test_a_time_is_a_place_to_begin(piped: Piped, topic: str):
    given = b"".join(
        json.dumps({"value": str(second), "partition": 0, "timestamp": second * 1000}).encode()
        + b"\n"
        for second in range(5)
    )
    piped.produce(topic, "--format", "json", given=given)
    assert piped.consume(topic, "--timestamp", "1970-01-01T00:00:03Z") == b"3\n4\n"
    assert piped.consume(topic, "--timestamp", "2500") == b"3\n4\n"


def test_ends_at_an_offset_or_a_time(piped: Piped, topic: str, cluster: Cluster):
    given = b"".join(
        json.dumps(
            {"value": f"{part}{second}", "partition": part, "timestamp": second * 1000}
        ).encode()
        + b"\n"
        for part in (0, 1)
        for second in range(4 + part)
    )
    piped.produce(topic, "--format", "json", given=given)

    def read(*arguments: object) -> list[str]:
        output, errors = piped.run("consume", topic, "--from-beginning", *arguments)
        assert errors == []
        return sorted(output.decode().split())

    assert read("--end-offset", 2) == ["00", "01", "10", "11"]
    assert read("--end-offset", -3) == ["00", "10", "11"]
    assert read("--end-offset", -3, "--until-end", "--end-timestamp", 1000) == ["00", "10"]
    assert read("--end-timestamp", "1970-01-01T00:00:02Z") == ["00", "01", "10", "11"]
    assert read("--end-timestamp", "1970-01-01") == []
    assert read("--end-timestamp", "1970-01-02", "--partition", 0) == ["00", "01", "02", "03"]
    # Partition 0 has nothing so late; its end is that of the log, as the time is over.
    assert read("--end-timestamp", 4000, "--partition", 0) == ["00", "01", "02", "03"]
    # The time is to come: a record of then ends it. Brokers take timestamps of the next hour.
    later = round(time.time() * 1_000) + 1_800_000
    ends = ("--end-offset", 9, "--end-timestamp", later)
    process = piped.start("consume", topic, "--partition", 0, "--offset", 3, *ends)
    assert process.stdout is not None
    assert process.stdout.readline() == "03\n"
    last = [
        {"value": value, "partition": 0, "timestamp": stamp}
        for value, stamp in (("before", 4000), ("then", later), ("behind", 5000))
    ]
    piped.produce(topic, "--format", "json", given=b"\n".join(json.dumps(e).encode() for e in last))
    output, errors = process.communicate(timeout=END_DEADLINE_S)
    assert (output, without_slow_node(errors)) == ("before\n", "")
    assert process.returncode == 0


def test_several_topics_and_patterns(piped: Piped, topic: str, cluster: Cluster):
    names = [f"{topic}.{letter}" for letter in "abc"]
    with Admin(cluster.bootstrap_server) as admin:
        admin.create_topics([NewTopic(name, partition_count=1) for name in names])
    for name in names:
        piped.produce(name, given=f"1 {name}\n2 {name}\n".encode())
    shown = ("--from-beginning", "--format", r"%t=%s\n")

    def read(*arguments: object) -> list[str]:
        return sorted(piped.consume(*arguments, *shown).decode().splitlines())

    def lines_for(*letters: str) -> list[str]:
        return [f"{topic}.{each}={n} {topic}.{each}" for each in letters for n in (1, 2)]

    assert read(names[0], names[2]) == lines_for("a", "c")
    assert read(rf"^{topic}\.[ab]") == lines_for("a", "b")
    assert read("-r", rf"{topic}\.[bc]$") == lines_for("b", "c")
    assert read("-r", rf"{topic}\.[bc]$", "--group", topic) == lines_for("b", "c")
    assert read(names[0], names[2], "--group", topic) == lines_for("a")  # c is read
    assert read(names[0], names[1], "--end-offset", 1) == lines_for("a")[:1] + lines_for("b")[:1]


def test_format_strings_write_bytes(piped: Piped, topic: str, tmp_path: Path):
    path = tmp_path / "value"
    path.write_bytes(b"\xff\0\n")
    piped.produce(topic, path, "--format", "raw", "--partition", 1, "--header", "h=x", given=b"")
    assert (
        piped.consume(topic, "--from-beginning", "-f", r"%t %p %o %K %S %h|%k|%v\xFE\0")
        == f"{topic} 1 0 -1 3 h:x||".encode() + b"\xff\0\n\xfe\0"
    )


def test_a_bad_line_says_what_is_written_and_where_to_go_on(
    piped: Piped, topic: str, tmp_path: Path
):
    path = tmp_path / "input"
    path.write_bytes(b"k:1\nk:2\nbad\nk:4\n")
    arguments = ("produce", topic, "--key-separator", ":")
    _, errors = piped.run(*arguments, path, status=1)
    assert errors == [
        f"moldau: {path}, line 3: no key separator ':' in it "
        "(2 records are written; go on at line 3 of the input: --skip-lines 2)"
    ]
    path.write_bytes(b"k:1\nk:2\nk:3\nk:4\n")
    assert piped.run(*arguments, path, "--skip-lines", 2) == (b"", [])
    assert piped.consume(topic, "--from-beginning") == b"1\n2\n3\n4\n"
    # Lines are those of all inputs together; what is skipped may be anything.
    other = tmp_path / "other"
    other.write_bytes(b"bad\nk:5\nbad\n")
    _, errors = piped.run(*arguments, path, other, "--skip-lines", 5, status=1)
    assert f"{other}, line 3" in errors[0]
    assert "1 records are written; go on at line 7 of the input: --skip-lines 6)" in errors[0]
    _, errors = piped.run(*arguments, path, "--skip-lines", 9, status=1)
    assert "--skip-lines 9: there are only 4" in errors[0]
    _, errors = piped.run(*arguments, given=b"bad\n", status=1)
    assert "line 1: no key separator" in errors[0]
    assert errors[0].endswith("(nothing is written)")


def test_a_record_that_is_refused_says_what_else_is_written(piped: Piped, topic: str):
    given = b'{"value": "1", "partition": 0}\n\n'
    given += b'{"value": "2", "partition": 1, "timestamp": 33000000000000}\n'  # in a year far off
    given += b'{"value": "3", "partition": 0}\n'
    _, errors = piped.run("produce", topic, "--format", "json", given=given, status=1)
    assert "2 of 3 records are written; go on at line 3 of the input: --skip-lines 2" in errors[0]
    assert errors[0].endswith("which writes 1 of them again)")
    assert piped.consume(topic, "--from-beginning") == b"1\n3\n"


def test_a_partition_that_does_not_exist_is_not_waited_for(
    piped: Piped, cluster: Cluster, topic: str
):
    _, errors = piped.run("produce", topic, "--partition", 2, given=b"1\n", status=1)
    assert errors == [f"moldau: topic {topic} has partitions 0 to 1, not 2 (nothing is written)"]
    process = piped.start("produce", topic, "--format", "json")
    assert process.stdin is not None
    process.stdin.write('{"value": "1", "partition": 1}\n')
    process.stdin.flush()
    with Consumer(cluster.bootstrap_server, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 1)])
        assert consumer.getone().value == b"1"
    with Admin(cluster.bootstrap_server) as admin:
        admin.create_partitions({topic: NewPartitions(3)})  # while it runs
    _, told = process.communicate(
        '{"value": "2", "partition": 2}\n{"value": "3", "partition": 3}\n'
        '{"value": "4", "partition": 0}\n',
        timeout=END_DEADLINE_S,
    )
    assert without_slow_node(told).splitlines() == [
        f"moldau: topic {topic} has partitions 0 to 2, not 3 "
        "(2 records are written; go on at line 3 of the input: --skip-lines 2)"
    ]
    assert process.returncode == 1


def test_an_interrupted_producer_says_what_is_written(piped: Piped, topic: str):
    process = piped.start("produce", topic, "--partition", 0)
    assert process.stdin is not None
    process.stdin.write("1\n2\n")
    process.stdin.flush()
    two = ("--from-beginning", "--max-messages", 2, "--timeout-ms", END_DEADLINE_S * 1_000)
    assert piped.run("consume", topic, *two) == (b"1\n2\n", [])
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=END_DEADLINE_S)
    assert process.returncode == 130
    assert without_slow_node(errors) == (
        "moldau: interrupted (2 records are written; go on at line 3 of the input: "
        "--skip-lines 2)\n"
    )


def test_a_topic_that_is_not_there(piped: Piped, topic: str):
    typo = topic[:-1]
    _, errors = piped.run("produce", typo, given=b"1\n", status=1)
    assert errors == [
        f"moldau: there is no topic {typo!r}; did you mean {topic}?; --create creates it"
    ]
    _, errors = piped.run("consume", typo, topic, status=1)
    assert errors == [f"moldau: there is no topic {typo!r}; did you mean {topic}?"]
    _, errors = piped.run("consume", "^no-such-", "--group", "g", status=1)
    assert errors == ["moldau: no topic's name matches ^no-such-"]
    piped.produce(typo, "--create", given=b"1\n")
    piped.produce(typo, "--create", given=b"2\n")
    assert sorted(piped.consume(typo, "--from-beginning").split()) == [b"1", b"2"]


def test_a_transaction_is_everything_or_nothing(piped: Piped, topic: str):
    committed = ("--from-beginning", "--isolation", "read_committed")
    every_three = ("--transactional-id", topic, "--transaction-records", 3, "--format", "json")
    good = b"".join(b'{"value": "%d", "partition": 0}\n' % number for number in range(4))
    output, errors = piped.run("produce", topic, *every_three, given=good + b"{\n", status=1)
    assert output == b""
    assert len(errors) == 1
    assert "line 5: not JSON" in errors[0]
    assert "3 records are committed, the transaction was aborted" in errors[0]
    assert errors[0].endswith("go on at line 4 of the input: --skip-lines 3)")
    assert piped.consume(topic, *committed) == b"0\n1\n2\n"
    whole = ("--transactional-id", topic, "--partition", 0)
    _, errors = piped.run("produce", topic, *whole, "--format", "json", given=good + b"{", status=1)
    assert errors[0].endswith("(nothing is written, the transaction was aborted)")
    output, _ = piped.run("produce", topic, *whole, "--json", given=b"8\n9\n")
    assert json.loads(output)["records"] == 2
    assert piped.consume(topic, *committed) == b"0\n1\n2\n8\n9\n"


def test_ends_by_count_by_time_and_by_signal(piped: Piped, topic: str):
    piped.produce(topic, "--partition", 0, given=b"1\n")
    start = ("consume", topic, "--from-beginning")
    for timeout_ms in (200, 2_000, 20_000):  # on a busy machine the first record may take longer
        idle = ("--timeout-ms", timeout_ms)
        output, errors = piped.run(*start, "--max-messages", 2, *idle, status=1)
        if output and piped.run(*start, *idle) == (b"1\n", []):
            break
    else:
        raise AssertionError("nothing is read before the time is over")
    assert (output, len(errors)) == (b"1\n", 1)
    assert "1 of 2 records" in errors[0]
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = piped.start(*start, "--group", f"{topic}-{status}")
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=END_DEADLINE_S)
        assert process.returncode == status
        assert "Traceback" not in said


def test_a_reader_that_has_enough_is_no_fault(piped: Piped, topic: str, cluster: Cluster):
    piped.produce(topic, given=b"".join(b"%d\n" % number for number in range(50_000)))
    with heard(lambda opened: (opened.read(1), opened.close())) as (output, _):
        began = ("consume", topic, "--from-beginning", "--group", topic)
        assert piped.end(*began, stdout=output) == Ended(0, "", "")
    with Consumer(cluster.bootstrap_server, group_id=topic) as consumer:
        assert all(committed is None for committed in _committed(consumer, topic))


def test_a_reader_that_has_enough_is_noticed_before_the_next_record(piped: Piped, topic: str):
    piped.produce(topic, "--partition", 0, given=b"1\n2\n3\n")
    with heard(lambda opened: (opened.readline(), opened.readline(), opened.close())) as (
        output,
        _,
    ):
        assert piped.end("consume", topic, "--from-beginning", stdout=output) == Ended(0, "", "")


def _committed(consumer: Consumer, topic: str) -> Iterator[object]:
    from moldau.client import TopicPartition

    yield from consumer.committed([TopicPartition(topic, each) for each in range(2)]).values()


def test_settings_come_from_files_and_options(piped: Piped, topic: str, tmp_path: Path):
    config = tmp_path / "client.properties"
    config.write_text("max.request.size=500\ngroup.id=unused\n")
    arguments = ("produce", topic, "--command-config", config)
    _, errors = piped.run(*arguments, given=b"x" * 501 + b"\n", status=1)
    assert "longer than 500 bytes" in errors[-1]
    assert errors[0] == "moldau: without effect here: group.id"
    _, errors = piped.run("produce", topic, "--property", "lingre.ms=3", status=WRONG_USAGE)
    assert "did you mean linger.ms" in errors[0]


def test_an_offset_that_is_not_in_the_log_is_refused_with_a_message(piped: Piped, topic: str):
    piped.produce(topic, "--partition", 1, given=b"a\nb\n")

    def told(*arguments: object) -> list[str]:
        output, errors = piped.run("consume", topic, "--until-end", *arguments)
        assert output == b""
        return errors

    end = "is out of range; reading from the end (auto.offset.reset)"
    assert told("--partition", 1, "--offset", 9) == [f"moldau: partition 1 ends at 2: 9 {end}"]
    assert told("--offset", 2) == [f"moldau: partition 0 ends at 0: 2 {end}"]
    assert told("--partition", 1, "--offset", 2) == []
    with Admin(piped.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 1): 1})
    assert told("--partition", 1, "--offset", 0) == [f"moldau: partition 1 begins at 1: 0 {end}"]


def test_an_unknown_key_that_nothing_resembles_names_the_page_of_all_keys(piped: Piped):
    _, errors = piped.run("consume", "t", "--property", "foo=1", status=WRONG_USAGE)
    assert errors == ["moldau: foo: no such setting; docs/compatibility.md lists them"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("produce", "t", "--transaction-records", 3), "give --transactional-id"),
        (("produce", "t", "--format", "json", "--key-separator", ":"), "for --format text"),
        (("produce", "t", "--header", "x"), "NAME=VALUE"),
        (("consume", "t", "--group", "g", "--offset", "3"), "without a group"),
        (("consume", "t", "--from-beginning", "--offset", "3"), "exclude each other"),
        (("consume", "t", "--timestamp", "soon"), "ISO 8601"),
        (("consume", "t", "--fields", "kee"), "'kee' is none of"),
        (("consume", "t", "--base64"), "for --format json"),
        (("consume", "t", "--format", "jsn"), "text, json, raw or a format string"),
        (("consume", "t", "--format", "%q"), "%q is no placeholder: %t topic"),
        (("consume", "t", "--format", "%v", "--delimiter", ";"), "for --format text"),
        (("consume", "^(", "t"), "no regular expression"),
        (("consume", "t", "--end-offset", "x"), "--end-offset 'x': a number, or -N"),
        (("consume", "t", "--end-timestamp", "soon"), "--end-timestamp 'soon': 10m"),
    ],
)
def test_wrong_usage_is_one_line(cli: Cli, arguments: tuple[object, ...], complaint: str):
    assert complaint in cli.refused(*arguments, status=WRONG_USAGE)


def test_what_is_not_there_is_one_line(cli: Cli, piped: Piped):
    brief = ("--property", "default.api.timeout.ms=500")
    assert "missing" in cli.refused("consume", "missing", "--partition", 0, *brief)
    assert "no-such-file" in cli.refused("produce", "t", "no-such-file", "--create")
    elsewhere = {"MOLDAU_BOOTSTRAP_SERVER": "127.0.0.1:1"}
    short = ("--property", "max.block.ms=300", "--property", "delivery.timeout.ms=30300")
    assert "127.0.0.1:1" in cli.refused("produce", "t", __file__, *short, environ=elsewhere)
