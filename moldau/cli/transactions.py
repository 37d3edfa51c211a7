"""`moldau transactions`: list, describe, find hanging ones, abort."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from moldau import client
from moldau.cli.asking import (
    FIGURES_TIMEOUT_MS,
    WithInternal,
    Yes,
    ask_first,
    counted,
    is_asked,
    names_text,
    refuse_internal,
    refuse_unknown,
)
from moldau.cli.completion import complete_transactional_ids
from moldau.cli.options import (
    AsJson,
    ClusterAccess,
    Topics,
    existing_partitions,
    parse_topics,
    partitions_of,
    registered_broker,
    value_of,
)
from moldau.cli.output import age_text, complain, fail, print_json, print_rows, print_table, say
from moldau.cli.parameters import Within
from moldau.hanging_transactions import OpenTransaction, find_hanging
from moldau.protocol.errors import ErrorCode

MINUTE_MS = 60_000
MAX_PRODUCER_EPOCH = 2**15 - 1
app = typer.Typer()
TransactionalIds = Annotated[list[str], "ID…", complete_transactional_ids, "Transactional ids."]
Partition = Annotated[str, "TOPIC:PARTITION", "The partition."]
BrokerId = Annotated[int | None, Within(0), "Ask the replica on this broker, not the leader."]


@app.command("list")
def list_transactions(
    access: ClusterAccess,
    states: Annotated[
        list[str] | None, "--state", "Only those in this state (Ongoing, …); may be repeated."
    ] = None,
    producer_ids: Annotated[
        list[int] | None,
        "--producer-id",
        Within(0),
        "Only those of this producer; may be repeated.",
    ] = None,
    longer_than_ms: Annotated[
        int, Within(-1), "Only those open for more milliseconds than this; -1: all."
    ] = -1,
    pattern: Annotated[str | None, "Only ids that match this regular expression (RE2)."] = None,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with their state."""
    rows = [
        {
            "transactional_id": each.transactional_id,
            "coordinator": each.coordinator_id,
            "producer_id": each.producer_id,
            "state": each.state,
        }
        for each in access.ask(
            client.Admin,
            lambda admin: admin.list_transactions(
                states=states or (),
                producer_ids=producer_ids or (),
                longer_than_ms=longer_than_ms,
                transactional_id_pattern=pattern,
            ),
        )
    ]
    columns = ("transactional id", "coordinator", "producer id", "state")
    print_rows(columns, rows, as_json=as_json)


@app.command("describe")
def describe(
    access: ClusterAccess, transactional_ids: TransactionalIds, as_json: AsJson = False
) -> None:
    """Show producer, state and partitions of transactions."""
    outcome = access.ask(client.Admin, lambda admin: admin.describe_transactions(transactional_ids))
    now_ms = time.time_ns() // 1_000_000
    rows = [
        _described(each, now_ms)
        for each in outcome.values()
        if isinstance(each, client.TransactionDescription)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        for row in rows:
            row["started"] = age_text(row.pop("start_time_ms"))
        names = [name for name in rows[0] if name not in ("transactional_id", "duration_ms")]
        print_table(
            ("figure", *(str(row["transactional_id"]) for row in rows)),
            ((name.replace("_", " "), *(_cell(row[name]) for row in rows)) for name in names),
        )
    complain(outcome.values())


@app.command("describe-producers")
def describe_producers(
    access: ClusterAccess, partition: Partition, broker_id: BrokerId = None, as_json: AsJson = False
) -> None:
    """Show a partition's producers and their transactions."""
    wanted = _parsed(partition)
    producers = access.ask(client.Admin, lambda admin: _producers(admin, wanted, broker_id))
    rows = [
        {
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "coordinator_epoch": each.coordinator_epoch,
            "last_sequence": each.last_sequence,
            "last_timestamp_ms": each.last_timestamp_ms,
            "current_transaction_start_offset": each.current_transaction_start_offset,
        }
        for each in producers
    ]
    columns = (
        *("producer id", "producer epoch", "coordinator epoch", "last sequence"),
        *("last timestamp", "transaction start offset"),
    )
    print_rows(columns, rows, as_json=as_json)


@app.command("abort")
def abort(
    access: ClusterAccess,
    partition: Partition,
    start_offset: Annotated[
        int | None, Within(0), "The transaction's start offset, as find-hanging shows it."
    ] = None,
    producer_id: Annotated[
        int | None, Within(0), "The producer's id and both epochs, instead of --start-offset."
    ] = None,
    producer_epoch: Annotated[
        int | None, Within(0, MAX_PRODUCER_EPOCH), "The epoch of that producer."
    ] = None,
    coordinator_epoch: Annotated[
        int | None, Within(0), "The epoch of the coordinator that began the transaction."
    ] = None,
    internal: WithInternal = False,
    yes: Yes = False,
) -> None:
    """Abort a transaction that its coordinator has lost."""
    wanted = _parsed(partition)
    by_producer = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == (None in by_producer) or (
        start_offset is not None and by_producer != (None, None, None)
    ):
        fail(
            "give --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch",
            status=2,
        )
    refuse_internal([wanted.topic], allowed=internal)
    with access.asking(client.Admin) as (admin, loop):
        if start_offset is not None:
            producers = loop.run(_producers(admin, wanted, None))
            found = [
                each for each in producers if each.current_transaction_start_offset == start_offset
            ]
            if not found:
                fail(f"no open transaction of {wanted} begins at offset {start_offset}")
            transaction = client.AbortTransaction.of(wanted, found[0])
        else:
            assert producer_id is not None
            assert producer_epoch is not None
            assert coordinator_epoch is not None
            transaction = client.AbortTransaction(
                wanted, producer_id, producer_epoch, coordinator_epoch
            )
        if is_asked(yes=yes):
            lost = loop.run(_records_from(admin, wanted, start_offset))
            what = f"the transaction of producer {transaction.producer_id} on {wanted}{lost}"
            ask_first(f"abort {what}, whatever its coordinator decides", yes=yes)
        loop.run(admin.abort_transaction(transaction))
    say(f"aborted the transaction of producer {transaction.producer_id} on {wanted}")


async def _records_from(
    admin: client.Admin, partition: client.TopicPartition, start_offset: int | None
) -> str:
    """How many records a transaction may have that begins there; "" where that is not known."""
    if start_offset is None:
        return ""
    asked = await admin.list_partition_offsets(
        {partition: client.OffsetSpec.LATEST}, timeout_ms=FIGURES_TIMEOUT_MS
    )
    end = asked[partition]
    if isinstance(end, client.KafkaError):
        return f" from offset {start_offset} on"
    return (
        f" from offset {start_offset} on (at most {counted(end.offset - start_offset, 'record')})"
    )


@app.command("find-hanging")
def find_hanging_transactions(
    access: ClusterAccess,
    topics: Topics = None,
    broker_id: Annotated[
        int | None, Within(0), "Only partitions with a replica on this broker."
    ] = None,
    max_transaction_timeout_minutes: Annotated[
        int,
        "--max-transaction-timeout",
        Within(0),
        "Minutes that a transaction may last (transaction.max.timeout.ms).",
    ] = 15,
    as_json: AsJson = False,
) -> None:
    """Find open transactions that no coordinator will end."""
    wanted = parse_topics(topics)
    now_ms = time.time_ns() // 1_000_000
    with access.asking(client.Admin) as (admin, loop):
        if broker_id is not None:
            loop.run(registered_broker(admin, broker_id))
        partitions = loop.run(_searched(admin, wanted, broker_id))
        searching = find_hanging(
            admin,
            partitions,
            now_ms=now_ms,
            older_than_ms=max_transaction_timeout_minutes * MINUTE_MS,
            broker_id=broker_id,
        )
        hanging, errors = loop.run(searching)
    rows = [_hanging_row(each, now_ms) for each in hanging]
    columns = (
        *("topic", "partition", "producer id", "producer epoch", "coordinator epoch"),
        *("start offset", "last timestamp", "minutes"),
    )
    if as_json or rows:
        print_rows(columns, rows, as_json=as_json)
    else:
        say(f"no transaction hangs on {len(partitions)} partitions")
    complain(errors)


@app.command("force-terminate")
def force_terminate(
    access: ClusterAccess, transactional_ids: TransactionalIds, yes: Yes = False
) -> None:
    """Abort open transactions and fence their producers."""
    with access.asking(client.Admin) as (admin, loop):
        deed = loop.run(_termination(admin, list(dict.fromkeys(transactional_ids))))
        ask_first(deed, yes=yes)
        outcome = loop.run(admin.fence_producers(transactional_ids))
    for transactional_id, answer in outcome.items():
        if not isinstance(answer, client.KafkaError):
            say(
                f"terminated {transactional_id}: its producer is now {answer.producer_id} "
                f"in epoch {answer.producer_epoch}"
            )
    complain(outcome.values())


async def _termination(admin: client.Admin, transactional_ids: list[str]) -> str:
    """What `force-terminate` does, in one line. Exits with status 1, and the nearest ids, unless
    all of them exist: fencing makes the others. Raises: KafkaError
    """
    described = await admin.describe_transactions(transactional_ids)
    missing = [
        each
        for each, answer in described.items()
        if isinstance(answer, client.KafkaError)
        and answer.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    ]
    if missing:
        listed = await admin.list_transactions()
        refuse_unknown("transactional id", missing, {each.transactional_id for each in listed})
    found = [each for each in described.values() if isinstance(each, client.TransactionDescription)]
    count = sum(len(each.partitions) for each in found)
    shown = [f"{each.transactional_id} ({each.state})" for each in found]
    names = names_text(shown or transactional_ids)
    return f"fence {names} and abort what is open on {counted(count, 'partition')}"


async def _producers(
    admin: client.Admin, partition: client.TopicPartition, broker_id: int | None
) -> list[client.ProducerState]:
    if broker_id is not None:
        await registered_broker(admin, broker_id)
    asked = await admin.describe_partition_producers([partition], broker_id=broker_id)
    return sorted(value_of(asked[partition]), key=lambda each: each.producer_id)


async def _searched(
    admin: client.Admin, wanted: dict[str, set[int] | None], broker_id: int | None
) -> list[client.TopicPartition]:
    """The partitions to search: those named, or all, with a replica on the broker if one is."""
    if not wanted:
        wanted = dict.fromkeys(await admin.list_topics(include_internal=True))
    partitions = await existing_partitions(admin, wanted)
    if broker_id is None:
        return partitions
    described = partitions_of(await admin.describe_topics(sorted(wanted)))
    return [
        each for each in partitions if each in described and broker_id in described[each].replicas
    ]


def _parsed(text: str) -> client.TopicPartition:
    topic, _, index = text.rpartition(":")
    if not topic or not (index.isascii() and index.isdigit()):
        fail(f"{text!r} is not TOPIC:PARTITION", status=2)
    return client.TopicPartition(topic, int(index))


def _described(transaction: client.TransactionDescription, now_ms: int) -> dict[str, object]:
    started_ms = transaction.start_time_ms
    return {
        "transactional_id": transaction.transactional_id,
        "coordinator": transaction.coordinator.node_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "state": transaction.state,
        "timeout_ms": transaction.timeout_ms,
        "start_time_ms": started_ms,
        "duration_ms": None if started_ms is None else max(0, now_ms - started_ms),
        "partitions": [each._asdict() for each in sorted(transaction.partitions)],
    }


def _cell(value: object) -> object:
    if isinstance(value, list):
        return " ".join(f"{each['topic']}-{each['partition']}" for each in value) or None
    return value


def _hanging_row(transaction: OpenTransaction, now_ms: int) -> dict[str, object]:
    producer = transaction.producer
    return {
        **transaction.partition._asdict(),
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "start_offset": producer.current_transaction_start_offset,
        "last_timestamp_ms": producer.last_timestamp_ms,
        "minutes": (now_ms - producer.last_timestamp_ms) // MINUTE_MS,
    }
