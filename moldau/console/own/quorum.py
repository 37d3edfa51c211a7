"""`…/quorum`: who leads the controllers, how far the others are, and who has led before.

Must not read the metadata log: the node that serves the console does, and elsewhere there is none.
Invariant: nothing of the log is shown to one who may not describe the cluster and its
configurations, and the log itself, by its name.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from moldau.client import (
    Admin,
    KafkaError,
    QuorumDescription,
    QuorumReplica,
    UnknownTopicOrPartition,
)
from moldau.console.calls import Call, Reply
from moldau.console.own.lists import OWN
from moldau.console.problems import RETRY, Problem
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import (
    BOOLEAN,
    INTEGER,
    STRING,
    array,
    mapping,
    named,
    nullable,
    record,
)
from moldau.console.settings import MetadataLog, MetadataUnknown
from moldau.protocol.errors import LocalProtocolError
from moldau.protocol.types import METADATA_TOPIC_NAME, ZERO_UUID, uuid_to_base64

ANSWER_TIMEOUT_MS: Final = 5_000
NODE: Final = named(
    "QuorumNode",
    record(
        {
            "node_id": INTEGER,
            "directory_id": nullable(STRING),
            "log_end_offset": INTEGER,
            "lag": nullable(INTEGER),
            "last_fetch_ms": nullable(INTEGER),
            "last_caught_up_ms": nullable(INTEGER),
            "is_leader": BOOLEAN,
            "endpoints": array(record({"name": STRING, "host": STRING, "port": INTEGER})),
        }
    ),
)
ELECTION: Final = named(
    "Election", record({"epoch": INTEGER, "leader_id": nullable(INTEGER), "at_ms": INTEGER})
)
QUORUM: Final = named(
    "Quorum",
    record(
        {
            "leader_id": nullable(INTEGER),
            "leader_epoch": INTEGER,
            "high_watermark": nullable(INTEGER),
            "cluster_version": nullable(mapping(INTEGER)),
            "voters": array(NODE),
            "observers": array(NODE),
            "elections": array(ELECTION),
        }
    ),
)

RECORD: Final = named(
    "MetadataRecord",
    record(
        {
            "offset": INTEGER,
            "epoch": INTEGER,
            "timestamp_ms": nullable(INTEGER),
            "type": STRING,
            "version": INTEGER,
            "fields": {"type": "object"},
            "summary": STRING,
        }
    ),
)
LOG_PAGE: Final = named(
    "MetadataRecords",
    record(
        {
            "records": array(RECORD),
            "next": nullable(INTEGER),
            "start_offset": INTEGER,
            "end_offset": INTEGER,
        }
    ),
)
OFFSET: Final = {**INTEGER, "minimum": 0}
LIMIT: Final = {**INTEGER, "minimum": 1, "maximum": 500}


async def show_quorum(call: Call) -> Reply:
    """The quorum as its leader sees it; elections as the serving node's log has them."""
    admin = (await call.clients()).admin
    quorum = await admin.describe_metadata_quorum(timeout_ms=ANSWER_TIMEOUT_MS)
    elections: list[dict[str, Any]] = []
    if call.site.settings.metadata_log is not None:
        try:
            elections = await call.site.settings.metadata_log.elections()
        except MetadataUnknown:
            elections = []  # the rest is worth having
    return Reply(
        {
            **quorum_document(quorum),
            "cluster_version": await _feature_levels(admin),
            "elections": elections,
        }
    )


async def _feature_levels(admin: Admin) -> dict[str, int] | None:
    try:
        return dict((await admin.describe_features(timeout_ms=ANSWER_TIMEOUT_MS)).finalized)
    except (KafkaError, LocalProtocolError):
        return None


def quorum_document(quorum: QuorumDescription) -> dict[str, Any]:
    """What the leader says, in JSON; how far it is ahead of each node where it is one of them."""
    leader = quorum.voter(quorum.leader_id)
    end = None if leader is None or leader.log_end_offset < 0 else leader.log_end_offset

    def node(replica: QuorumReplica) -> dict[str, Any]:
        is_known = end is not None and replica.log_end_offset >= 0
        directory_id = replica.directory_id
        return {
            "node_id": replica.replica_id,
            "directory_id": None if directory_id == ZERO_UUID else uuid_to_base64(directory_id),
            "log_end_offset": replica.log_end_offset,
            "lag": max(0, (end or 0) - replica.log_end_offset) if is_known else None,
            "last_fetch_ms": replica.last_fetch_timestamp_ms,
            "last_caught_up_ms": replica.last_caught_up_timestamp_ms,
            "is_leader": replica.replica_id == quorum.leader_id,
            "endpoints": [
                {"name": each.listener_name, "host": each.host, "port": each.port}
                for each in quorum.endpoints.get(replica.replica_id, ())
            ],
        }

    return {
        "leader_id": None if quorum.leader_id < 0 else quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": None if quorum.high_watermark < 0 else quorum.high_watermark,
        "voters": [node(each) for each in quorum.voters],
        "observers": [node(each) for each in quorum.observers],
    }


async def show_log(call: Call) -> Reply:
    """Committed records of the metadata log, in order; without `from` the newest ones."""
    log = _metadata_log(call)
    await _require_reader(call)
    try:
        return Reply(await log.records(call.query["from"], call.query["limit"]))
    except MetadataUnknown as error:
        raise _problem(error) from None


def _metadata_log(call: Call) -> MetadataLog:
    log = call.site.settings.metadata_log
    if log is None:
        why = "the metadata log is shown where a node of Moldau serves the console"
        raise Problem(404, why)
    return log


def _problem(error: MetadataUnknown) -> Problem:
    return Problem(404, str(error)) if error.is_gone else Problem(503, str(error), *RETRY)


async def _require_reader(call: Call) -> None:
    """Ask the cluster whether the person may see what is in the log. Raises: KafkaError."""
    admin = (await call.clients()).admin
    await admin.describe_metadata_quorum(timeout_ms=ANSWER_TIMEOUT_MS)  # Describe
    await admin.describe_client_quotas(strict=True)  # DescribeConfigs
    with suppress(UnknownTopicOrPartition):  # who may describe it hears that it is not served
        await admin.describe_topics([METADATA_TOPIC_NAME], timeout_ms=ANSWER_TIMEOUT_MS)


_READER: Final = (
    "Describe and DescribeConfigs on the cluster, and Describe on the topic __cluster_metadata"
)
ROUTES: Final = (
    Route(
        method="GET",
        path=f"{OWN}/quorum",
        handler=show_quorum,
        name="getQuorum",
        summary="The metadata quorum: leader, voters, observers, elections",
        needs="Describe on the cluster",
        answer=QUORUM,
    ),
    Route(
        method="GET",
        path=f"{OWN}/quorum/log",
        handler=show_log,
        name="listMetadataRecords",
        summary="The metadata log, record by record",
        needs=_READER,
        query=(
            Parameter("from", "The first offset; without it, the newest ones.", OFFSET),
            Parameter("limit", "At most so many.", LIMIT, default=100),
        ),
        answer=LOG_PAGE,
    ),
)
