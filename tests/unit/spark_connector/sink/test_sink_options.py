"""Options of a write: defaults, refusals, and the clients' settings that come of them."""

from __future__ import annotations

import hashlib
import pickle
import re
from pathlib import Path

import pytest

from moldau.spark_connector.errors import InvalidOption
from moldau.spark_connector.sink.options import (
    DEFAULT_LEDGER_TOPIC,
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    KNOWN,
    Semantics,
    SinkOptions,
    Transactions,
)

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def parsed(**given: str) -> SinkOptions:
    return SinkOptions.parse(SERVERS | {name.replace("__", "."): v for name, v in given.items()})


def test_defaults() -> None:
    options = parsed()
    assert options.semantics is Semantics.EXACTLY_ONCE
    assert options.transactions is Transactions.AUTO
    assert options.ledger_topic == DEFAULT_LEDGER_TOPIC
    assert (options.topic, options.sink_id, options.txn_id) == (None, None, None)
    assert (options.may_differ, options.may_follow) == (False, True)
    assert not options.include_timestamp
    assert options.admin_config().retries == 2**31 - 1
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_of_the_sink_is_documented() -> None:
    page = Path(__file__).parents[4] / "docs" / "spark.md"
    writing = page.read_text(encoding="utf-8").split("## Writing")[1].split("\n## ")[0]
    table = writing.split("| option |")[1].split("\n\n")[0]
    rows = table.splitlines()[2:]
    documented = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert documented - {"kafka.bootstrap.servers", "kafka.*"} == set(KNOWN)


def test_what_spark_itself_hands_over_is_no_mistake() -> None:
    """`writeStream.queryName(…)` and the checkpoint's place are options, too."""
    assert parsed(queryname="q", checkpointlocation="/c") == parsed(checkpointLocation="/c")


def test_names_have_no_case() -> None:
    options = SinkOptions.parse({"KAFKA.bootstrap.servers": "h:1", "SINKID": "s", "TxnId": "t"})
    assert (options.sink_id, options.txn_id) == ("s", "t")
    assert options.kafka == {"bootstrap.servers": "h:1"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"topc": "t"}, "did you mean topic"),
        ({"subscribe": "t"}, "subscribe is not an option of the sink"),
        ({"startingOffsets": "latest"}, "it says what is read"),
        ({"semantics": "twice"}, "one of exactly-once, at-least-once"),
        ({"transactions": "some"}, "one of auto, prepared, standard"),
        ({"onReplayMismatch": "ask"}, "one of fail, skip"),
        ({"includeTimestamp": "maybe"}, "true or false"),
        ({"includeHeaders": "maybe"}, "true or false"),
        ({"topic": "t" * 250}, "1 to 249"),
        ({"sinkId": " "}, "sinkId=' ': 1 to 200 printable characters"),
        ({"sinkId": "s" * 201}, "1 to 200"),
        ({"sinkId": "a\nb"}, "printable"),
        ({"kafka.key.serializer": "x"}, "rows are written as the bytes that they are"),
        ({"kafka.value.serializer": "x"}, "rows are written as the bytes that they are"),
        ({"kafka.transactional.id": "x"}, "the sink names its transactions itself"),
        ({"kafka.transaction.two.phase.commit.enable": "true"}, "use transactions=prepared"),
        ({"kafka.enable.idempotence": "false"}, "exactly-once needs true"),
        ({"kafka.acks": "1"}, "exactly-once needs all"),
        ({"kafka.retries": "0"}, "retries=0"),
        ({"kafka.lingre.ms": "5"}, "did you mean linger.ms"),
        ({"kafka.bootstrap.controllers": "localhost:9093"}, "bootstrap.controllers"),
        ({"kafka.linger.ms": "soon"}, "linger.ms"),
        ({"topic": DEFAULT_LEDGER_TOPIC}, "sinks keep their decisions there"),
        ({"topic": "t", "ledgerTopic": "t"}, "sinks keep their decisions there"),
        ({"txnId": "t", "semantics": "at-least-once"}, "needs semantics=exactly-once"),
        (
            {"transactions": "prepared", "kafka.transaction.timeout.ms": "1000"},
            "have no time limit",
        ),
    ],
)
@pytest.mark.promise("refusal-options")
def test_refusals(given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        SinkOptions.parse(SERVERS | given)


def test_what_is_allowed_at_the_edge_of_what_is_refused() -> None:
    assert parsed(onReplayMismatch="skip").may_differ
    assert not parsed(onNewQuery="fail").may_follow
    assert parsed(includeTimestamp="true", includeHeaders="true").include_timestamp
    assert parsed(sinkId="s" * 200, txnId="t" * 200).sink_id == "s" * 200
    assert parsed(topic="t" * 249, ledgerTopic="l" * 249).topic == "t" * 249
    given = {"kafka__enable__idempotence": " TRUE", "kafka__acks": " all "}
    for acks in (given, {"kafka__acks": "-1"}):
        assert parsed(**acks).semantics is Semantics.EXACTLY_ONCE
    options = parsed(transactions="standard", kafka__transaction__timeout__ms="1000")
    assert options.producer_config(transactional_id="x").transaction_timeout_ms == 1_000


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("name", ["linger.ms", "default.api.timeout.ms", "fetch.min.bytes"])
def test_settings_of_every_client_are_looked_at_first(semantics: str, name: str) -> None:
    """A task or a commit would fail because of them, when rows have been written."""
    given = {"semantics": semantics, f"kafka.{name}": "soon"}
    with pytest.raises(InvalidOption, match=name.replace(".", r"\.")):
        SinkOptions.parse(SERVERS | given)


@pytest.mark.parametrize("servers", [{}, {"kafka.bootstrap.servers": ""}])
def test_servers_are_needed(servers: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers is missing"):
        SinkOptions.parse({"topic": "t", **servers})


def test_what_exactly_once_refuses_is_allowed_at_least_once() -> None:
    options = parsed(semantics="at-least-once", kafka__acks="1")
    assert options.producer_config().acks == "1"


@pytest.mark.promise("sinkid-derived", "sinkid-of-batches")
def test_sink_ids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert parsed(sinkId="mine").stream_sink_id() == "mine"
    one = parsed(checkpointLocation="/a/b").stream_sink_id()
    # The same in all releases: what the ledger knows is under it.
    assert one == "moldau-" + hashlib.sha256(b"/a/b").hexdigest()[:24]
    for same in ("file:///a/b/", "/a//b", "/a/./b/", "file:/a/c/../b"):
        assert parsed(checkpointLocation=same).stream_sink_id() == one
    assert one != parsed(checkpointLocation="/a/c").stream_sink_id()
    with pytest.raises(InvalidOption, match="sinkId is missing"):
        parsed().stream_sink_id()
    monkeypatch.chdir(tmp_path)
    here = parsed(checkpointLocation=str(tmp_path / "c")).stream_sink_id()
    assert parsed(checkpointLocation="./c/").stream_sink_id() == here
    monkeypatch.chdir("/")
    assert parsed(checkpointLocation="c").stream_sink_id() != here
    assert parsed(sinkId="mine").batch_sink_id("txn:1") == "mine"
    assert parsed().batch_sink_id("txn:1") != parsed().batch_sink_id("txn:2")


def test_clients_get_what_is_theirs() -> None:
    options = parsed(
        **{"kafka__linger__ms": "7", "kafka__fetch__min__bytes": "3", "kafka__client__id": "me"},
        **{"kafka__default__api__timeout__ms": "2000", "kafka__group__id": "g"},
    )
    producer = options.producer_config(transactional_id="x")
    assert (producer.linger_ms, producer.client_id, producer.transactional_id) == (7, "me", "x")
    assert producer.max_block_ms == 2_000
    assert producer.transaction_timeout_ms == DEFAULT_TRANSACTION_TIMEOUT_MS
    assert options.admin_config().default_api_timeout_ms == 2_000
    consumer = options.consumer_config(isolation_level="read_committed")
    assert (consumer.fetch_min_bytes, consumer.group_id) == (3, None)
    assert consumer.isolation_level == "read_committed"


def test_blocking_calls_of_a_producer_last_as_long_as_those_of_the_others() -> None:
    """A time that is given for them alone wins."""
    given = {"kafka__default__api__timeout__ms": "2000", "kafka__max__block__ms": "70"}
    assert parsed(**given).producer_config().max_block_ms == 70
    assert parsed(kafka__max__block__ms="70").producer_config().max_block_ms == 70
    assert "max_block_ms" not in parsed().producer_config().given


def test_retries_of_the_user_are_those_of_all_clients() -> None:
    options = parsed(kafka__retries="7")
    assert options.admin_config().retries == options.producer_config().retries == 7


@pytest.mark.parametrize("given", [{}, {"kafka__transaction__timeout__ms": "1000"}])
def test_prepared_transactions_have_no_time_limit(given: dict[str, str]) -> None:
    config = parsed(**given).producer_config(
        transactional_id="x", transaction_two_phase_commit_enable=True
    )
    assert config.transaction_two_phase_commit_enable
    assert "transaction_timeout_ms" not in config.given
