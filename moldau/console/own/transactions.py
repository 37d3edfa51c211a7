"""`…/transactions` and `…/topics/{topic}/producers`: who writes with ids, what is open, what hangs.

Must not decide what hangs: `moldau.hanging_transactions` does, as for the command. Invariants: an
abort by a transactional id never makes that id; the partitions that are searched for a list, and
the transactions that are described for one, are limited, and the answer says what was left out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from moldau.client import (
    AbortTransaction,
    Admin,
    ConfigResource,
    ConfigResourceType,
    KafkaError,
    ProducerState,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from moldau.console.calls import Call, Reply
from moldau.console.own.commands import command, option
from moldau.console.own.lists import OWN, Row, list_parameters, matching, page
from moldau.console.problems import Problem
from moldau.console.reading import partitions_of
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import (
    BOOLEAN,
    INTEGER,
    STRING,
    array,
    named,
    nullable,
    one_of,
    record,
)
from moldau.hanging_transactions import OpenTransaction, find_hanging
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.types import INTERNAL_PREFIX

ONGOING: Final = "Ongoing"
OPEN_STATES: Final = (ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
STATES: Final = (*OPEN_STATES, "CompleteCommit", "CompleteAbort", "Empty", "Dead")
ANSWER_TIMEOUT_MS: Final = 5_000
SEARCH_S: Final = 5.0
"""A search for what hangs takes no longer; a list without it says so."""
MAX_SEARCHED: Final = 5_000
"""Partitions that are searched for one list."""
MAX_SORTED: Final = 5_000
"""Transactions that are described only to sort them."""
MAX_PRODUCERS: Final = 5_000
"""Producers that are shown of a topic."""
MAX_TIMEOUT_KEY: Final = "transaction.max.timeout.ms"
USUAL_MAX_TIMEOUT_MS: Final = 900_000
_CHEAP: Final = ("transactional_id", "producer_id", "state", "coordinator")
_OF_OPEN_ONES: Final = ("start_time_ms", "age_ms")
_OF_ALL: Final = ("producer_epoch", "timeout_ms")

PRODUCER: Final = named(
    "TopicProducer",
    record(
        {
            "partition": INTEGER,
            "producer_id": INTEGER,
            "producer_epoch": INTEGER,
            "last_sequence": INTEGER,
            "last_timestamp_ms": nullable(INTEGER),
            "coordinator_epoch": nullable(INTEGER),
            "transaction_start_offset": nullable(INTEGER),
        }
    ),
)
UNANSWERED: Final = record({"partition": INTEGER, "detail": STRING})
PRODUCERS: Final = named(
    "TopicProducers",
    record({"data": array(PRODUCER), "total": INTEGER, "unanswered": array(UNANSWERED)}),
)
PLACE: Final = record({"topic": STRING, "partition": INTEGER, "start_offset": nullable(INTEGER)})
TRANSACTION_ROW: Final = named(
    "TransactionRow",
    record(
        {
            "transactional_id": STRING,
            "producer_id": INTEGER,
            "producer_epoch": nullable(INTEGER),
            "state": STRING,
            "coordinator": nullable(INTEGER),
            "timeout_ms": nullable(INTEGER),
            "start_time_ms": nullable(INTEGER),
            "age_ms": nullable(INTEGER),
            "partitions": array(PLACE),
            "is_hanging": BOOLEAN,
        }
    ),
)
TRANSACTION_ROWS: Final = named(
    "TransactionRows",
    record(
        {
            "data": array(TRANSACTION_ROW),
            "next": nullable(STRING),
            "total": INTEGER,
            "not_searched": INTEGER,
        }
    ),
)


async def list_producers(call: Call) -> Reply:
    """The producers that a topic's leaders remember, those with open transactions first."""
    clients, wanted = await call.clients(), call.query["partition"]
    partitions = await partitions_of(clients.admin, call.path["topic"], wanted)
    asked = await clients.admin.describe_partition_producers(
        partitions, timeout_ms=ANSWER_TIMEOUT_MS
    )
    errors = {at: each for at, each in asked.items() if isinstance(each, KafkaError)}
    if len(errors) == len(asked):
        for error in errors.values():
            raise error
    rows = [
        _producer(at, each)
        for at, producers in sorted(asked.items())
        if not isinstance(producers, KafkaError)
        for each in producers
    ]
    rows.sort(key=lambda row: row["transaction_start_offset"] is None)
    shown = sorted(rows[:MAX_PRODUCERS], key=lambda row: (row["partition"], row["producer_id"]))
    unanswered = [
        {"partition": at.partition, "detail": str(error)} for at, error in sorted(errors.items())
    ]
    return Reply({"data": shown, "total": len(rows), "unanswered": unanswered})


def _producer(at: TopicPartition, producer: ProducerState) -> Row:
    return {
        "partition": at.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp_ms": _known(producer.last_timestamp_ms),
        "coordinator_epoch": _known(producer.coordinator_epoch),
        "transaction_start_offset": producer.current_transaction_start_offset,
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


async def list_transactions(call: Call) -> Reply:
    """Transactional ids with their transactions, and open ones that no coordinator will end."""
    clients, query = await call.clients(), call.query
    admin = clients.admin
    now_ms = time.time_ns() // 1_000_000
    least_ms: int | None = query["min_age_ms"]
    listing = await admin.list_transactions(
        longer_than_ms=least_ms - 1 if least_ms else -1, timeout_ms=ANSWER_TIMEOUT_MS
    )
    rows = [row_of(each) for each in listing]
    found = Search()
    if query["state"] in (None, ONGOING):
        found = await clients.looks.of("what hangs", partial(_searched, clients.admin, now_ms))
        rows += hanging_rows(found.hanging, now_ms)
    rows = [row for row in rows if is_wanted(row, query["state"], least_ms)]
    rows = matching(rows, query["q"], ("transactional_id", "producer_id"))
    for row in rows:
        row["name"] = f"{row['transactional_id']}\0{row['producer_id']}"
    ready: set[str] = set()
    if query["sort"] in (*_OF_OPEN_ONES, *_OF_ALL):
        is_of_all = query["sort"] in _OF_ALL
        ready = _ids(row for row in rows if is_of_all or row["state"] in OPEN_STATES)
        if len(ready) > MAX_SORTED:
            why = f"sorted by {query['sort']} are at most {MAX_SORTED} transactions"
            raise Problem(422, f"{why}; {len(ready)} match: search for some of them")
        await _add_descriptions(admin, rows, ready, now_ms)
    shown = page(query, rows, name="name")
    await _add_descriptions(admin, shown["data"], _ids(shown["data"]) - ready, now_ms)
    for row in shown["data"]:
        del row["name"]
    return Reply({**shown, "not_searched": found.not_searched})


def row_of(listing: TransactionListing) -> Row:
    """A transactional id as its coordinator lists it; the rest is not known yet."""
    return {
        "transactional_id": listing.transactional_id,
        "producer_id": listing.producer_id,
        "producer_epoch": None,
        "state": listing.state,
        "coordinator": listing.coordinator_id,
        "timeout_ms": None,
        "start_time_ms": None,
        "age_ms": None,
        "partitions": [],
        "is_hanging": False,
    }


def hanging_rows(hanging: Iterable[OpenTransaction], now_ms: int) -> list[Row]:
    """One row for each producer that has left open what no coordinator will end. Their age is that
    of the last record: when the transaction began is not known.
    """
    by_producer: dict[int, list[OpenTransaction]] = {}
    for each in sorted(hanging, key=lambda each: each.partition):
        by_producer.setdefault(each.producer.producer_id, []).append(each)
    rows = []
    for producer_id, transactions in by_producer.items():
        last_ms = min(each.producer.last_timestamp_ms for each in transactions)
        rows.append(
            {
                "transactional_id": "",
                "producer_id": producer_id,
                "producer_epoch": transactions[0].producer.producer_epoch,
                "state": ONGOING,
                "coordinator": None,
                "timeout_ms": None,
                "start_time_ms": None,
                "age_ms": max(0, now_ms - last_ms),
                "partitions": [
                    _place(each.partition, each.producer.current_transaction_start_offset)
                    for each in transactions
                ],
                "is_hanging": True,
            }
        )
    return rows


def _place(partition: TopicPartition, start_offset: int | None = None) -> Row:
    return {**partition._asdict(), "start_offset": start_offset}


def is_wanted(row: Row, state: str | None, least_ms: int | None) -> bool:
    """Whether a row is in a state, and may have been open for so long."""
    if state is not None and row["state"] != state:
        return False
    if not least_ms:
        return True
    return row["state"] in OPEN_STATES and (row["age_ms"] is None or row["age_ms"] >= least_ms)


def _ids(rows: Iterable[Row]) -> set[str]:
    return {row["transactional_id"] for row in rows if not row["is_hanging"]}


async def _add_descriptions(
    admin: Admin, rows: Collection[Row], ids: Collection[str], now_ms: int
) -> None:
    """What the coordinators know of these ids; what they do not say stays as it was listed."""
    if not ids:
        return
    described = await admin.describe_transactions(sorted(ids), timeout_ms=ANSWER_TIMEOUT_MS)
    for row in rows:
        found = described.get(row["transactional_id"])
        if not row["is_hanging"] and isinstance(found, TransactionDescription):
            describe(row, found, now_ms)


def describe(row: Row, found: TransactionDescription, now_ms: int) -> None:
    """Put what the coordinator knows into a row; only what is open has an age."""
    row["producer_id"] = found.producer_id
    row["producer_epoch"] = found.producer_epoch
    row["state"] = found.state
    row["timeout_ms"] = found.timeout_ms
    row["partitions"] = [_place(each) for each in sorted(found.partitions)]
    started_ms = found.start_time_ms
    if started_ms is not None and found.state in OPEN_STATES:
        row["start_time_ms"], row["age_ms"] = started_ms, max(0, now_ms - started_ms)


@dataclass(frozen=True, slots=True)
class Search:
    """What hangs, and how many partitions could not be searched, or were too many."""

    hanging: tuple[OpenTransaction, ...] = ()
    not_searched: int = 0


async def _searched(admin: Admin, now_ms: int) -> Search:
    """Search the partitions of all topics that the person may read. Raises: KafkaError"""
    described = await admin.describe_topics(timeout_ms=ANSWER_TIMEOUT_MS)
    everywhere = [
        TopicPartition(name, each.partition)
        for name, topic in sorted(described.items())
        for each in topic.partitions
    ]
    partitions = everywhere[:MAX_SEARCHED]
    try:
        async with asyncio.timeout(SEARCH_S):
            longest_ms = await _longest_transaction_ms(admin)
            hanging, errors = await find_hanging(
                admin, partitions, now_ms=now_ms, older_than_ms=longest_ms
            )
    except (KafkaError, LocalProtocolError, TimeoutError):
        return Search(not_searched=len(everywhere))
    return Search(tuple(hanging), len(errors) + len(everywhere) - len(partitions))


async def _longest_transaction_ms(admin: Admin) -> int:
    """How long a transaction may be open: what the first broker says, or Kafka's usual."""
    try:
        brokers = (await admin.describe_cluster()).brokers
        resource = ConfigResource(ConfigResourceType.BROKER, str(brokers[0].node_id))
        found = await admin.describe_configs([resource], keys=[MAX_TIMEOUT_KEY])
        return int(found[resource][MAX_TIMEOUT_KEY].value or USUAL_MAX_TIMEOUT_MS)
    except (KafkaError, LocalProtocolError, LookupError):
        return USUAL_MAX_TIMEOUT_MS


async def abort(call: Call) -> Reply:
    """Abort what hangs on a partition; or fence the producer of an id, which ends what is open."""
    body = call.body
    by_partition = [key for key in ("topic", "partition", "start_offset") if key in body]
    if "transactional_id" in body and not by_partition:
        return await _terminated(call, body["transactional_id"])
    if "transactional_id" in body or len(by_partition) < 3:
        raise Problem(422, "give topic, partition and start_offset, or transactional_id alone")
    at = TopicPartition(body["topic"], body["partition"])
    return await _aborted(call, at, body["start_offset"])


async def _aborted(call: Call, at: TopicPartition, start_offset: int) -> Reply:
    admin = (await call.clients()).admin
    await partitions_of(admin, at.topic, [str(at.partition)])
    producers = (await admin.describe_partition_producers([at]))[at]
    if isinstance(producers, KafkaError):
        raise producers
    for each in producers:
        if each.current_transaction_start_offset == start_offset:
            await admin.abort_transaction(AbortTransaction.of(at, each))
            call.forget_looks()
            return Reply({"command": abort_command(at, start_offset)})
    raise Problem(409, f"no open transaction of {at} begins at offset {start_offset}")


def abort_command(at: TopicPartition, start_offset: int) -> str:
    """The command that aborts what hangs on a partition."""
    internal = ["--internal"] if at.topic.startswith(INTERNAL_PREFIX) else []
    offset = option("--start-offset", start_offset)
    place = f"{at.topic}:{at.partition}"
    return command("transactions", "abort", *offset, *internal, names=[place])


async def _terminated(call: Call, transactional_id: str) -> Reply:
    admin = (await call.clients()).admin
    known = (await admin.describe_transactions([transactional_id]))[transactional_id]
    if isinstance(known, KafkaError):
        if known.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise Problem(404, "there is no such transactional id", kafka_code=known.code)
        raise known
    fenced = (await admin.fence_producers([transactional_id]))[transactional_id]
    if isinstance(fenced, KafkaError):
        raise fenced
    return Reply({"command": terminate_command(transactional_id)})


def terminate_command(transactional_id: str) -> str:
    """The command that fences the producer of an id."""
    return command("transactions", "force-terminate", names=[transactional_id])


_SIZE: Final = {**INTEGER, "minimum": 0, "maximum": 2**31 - 1}
_OFFSET: Final = {**INTEGER, "minimum": 0}
ROUTES: Final = (
    Route(
        method="GET",
        path=f"{OWN}/topics/{{topic}}/producers",
        handler=list_producers,
        name="listTopicProducers",
        summary="Producers that the leaders of a topic's partitions remember",
        needs="Read on the topic",
        query=(Parameter("partition", "Only these, with commas between.", array(STRING)),),
        answer=PRODUCERS,
    ),
    Route(
        method="GET",
        path=f"{OWN}/transactions",
        handler=list_transactions,
        name="listTransactions",
        summary="Transactional ids and their transactions: searched, sorted and page by page",
        needs="Describe on the transactional ids, the others are left out; Read on the topics that "
        "are searched for what hangs",
        query=(
            *list_parameters((*_CHEAP, *_OF_OPEN_ONES, *_OF_ALL), by="transactional_id"),
            Parameter("state", "Only transactions in this state.", one_of(*STATES)),
            Parameter("min_age_ms", "Only those that have been open for so long.", _OFFSET),
        ),
        answer=TRANSACTION_ROWS,
    ),
    Route(
        method="POST",
        path=f"{OWN}/transactions/abort",
        handler=abort,
        name="abortTransaction",
        summary="Abort what hangs on a partition, or fence the producer of a transactional id",
        needs="Read on the topic and ClusterAction or Alter on the cluster; Write on the "
        "transactional id",
        body=record(
            {},
            {
                "topic": STRING,
                "partition": _SIZE,
                "start_offset": _OFFSET,
                "transactional_id": {**STRING, "minLength": 1},
            },
        ),
        answer=named("TransactionAborted", record({"command": STRING})),
    ),
)
