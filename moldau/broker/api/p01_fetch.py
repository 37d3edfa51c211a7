"""Fetch v4-v18: record batches from where each consumer stands, with fetch sessions and long poll.

Behaviour: waits up to `max_wait_ms` for `min_bytes`; the first partition with data answers with at
least one whole batch, whatever the limits; from a middle offset the whole batch is returned. Topics
by name up to v12, by id from v13; sessions from v7 (KIP-227); a diverging log is reported from v12
(KIP-595); current leaders from v12, their endpoints from v16 (KIP-951). Records leave by sendfile
from the segment; bytes on disk this process has not seen are checked off the loop before.
A follower's fetch says how far its log reaches (the leader counts that once for each request, see
`DelayedFetch`) and, from v15, in which life of its broker (KIP-903).
A consumer that names its rack (v11) is sent to an in-sync replica there, and gets no records from
the leader then, if replica.selector.class says so (KIP-392); followers serve consumers up to their
high watermark. A follower that is not in sync may get no records for a while (KIP-73). A consumer
above its quota gets an empty answer and a pause (KIP-219), and with a quota never more at once than
that allows in ten windows.
Known gaps: no tiered storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.broker.replica.core.partition_core import UNKNOWN_BROKER_EPOCH
from moldau.broker.replica.delayed_fetch import (
    MAX_READ_AT_ONCE,
    DelayedFetch,
    FetchParameters,
    Outcome,
    is_news,
    total_bytes,
)
from moldau.broker.replica.fetch_read import FetchRead
from moldau.broker.replica.fetch_sessions import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    INVALID_SESSION_ID,
    FetchSession,
    FetchSessionCache,
    may_be_kept,
    request_partitions,
)
from moldau.broker.replica.leader_hints import WRONG_LEADER_ERRORS, LeaderHints
from moldau.broker.replica.partition import NO_REPLICA, FetchPartition, PartitionKey
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from moldau.server.request import RequestContext

FIRST_BY_TOPIC_ID: Final = 13
FIRST_WITH_SESSIONS: Final = 7
FIRST_FROM_FOLLOWERS: Final = 11
FIRST_WITH_LEADER: Final = 12
FIRST_WITH_ENDPOINTS: Final = 16
FIRST_WITH_REPLICA_STATE: Final = 15
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


class _NoOwner:
    """Holds the partitions of a request until their fetch exists."""

    __slots__ = ()

    def partition_changed(self, fetched: FetchPartition) -> None:
        raise AssertionError("a partition that nobody watches has changed")

    def high_watermark_moved(self, fetched: FetchPartition) -> None:
        raise AssertionError("a partition that nobody watches has a new high watermark")


_NO_OWNER: Final = _NoOwner()


def handle(
    services: BrokerServices, context: RequestContext, request: FetchRequest
) -> Iterator[None] | None:
    """Find the session, then let a DelayedFetch answer; of very many partitions, in steps."""
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        _refuse(context, ErrorCode.INVALID_REQUEST)
        return None
    parameters = _parameters(services, context, request)
    if parameters.is_from_follower and not context.authorized_cluster(Operation.CLUSTER_ACTION):
        _refuse_follower(context, request)
        return None
    sessions = services.fetch_sessions
    if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
        if request.session_id != INVALID_SESSION_ID:
            sessions.end(request.session_id)
        founds = request.session_epoch == INITIAL_SESSION_EPOCH and may_be_kept(request)
        if sum(len(topic.partitions) for topic in request.topics) > MAX_READ_AT_ONCE:
            return _start_large(services, context, request, parameters, founds=founds)
        by_key = {fetched.key: fetched for fetched in request_partitions(request, _NO_OWNER)}
        partitions = list(by_key.values())
        return _start_full(services, context, parameters, partitions, founds=founds)
    error, session = sessions.resume(request, uses_topic_ids=parameters.uses_topic_ids)
    if session is None:
        _refuse(context, error)
        return None
    open_session = session if session.partitions else None
    return _start(services, context, parameters, [], open_session, is_incremental=True)


def _start(
    services: BrokerServices,
    context: RequestContext,
    parameters: FetchParameters,
    partitions: list[FetchPartition],
    session: FetchSession | None,
    *,
    is_incremental: bool,
) -> Iterator[None] | None:
    fetch = DelayedFetch(
        services.replica_manager,
        context,
        parameters,
        partitions=partitions,
        session=session,
        is_incremental=is_incremental and session is not None,
        new_answer=partial(_Answer, services.fetch_sessions),
    )
    if session is None:
        for fetched in partitions:
            fetched.owner = fetch
    steps = fetch.start()
    if steps is not None:
        return _start_in_steps(services, steps)
    services.replica_manager.complete_ready()
    return None


def _start_in_steps(services: BrokerServices, steps: Iterator[None]) -> Iterator[None]:
    yield from steps
    services.replica_manager.complete_ready()


def _start_large(
    services: BrokerServices,
    context: RequestContext,
    request: FetchRequest,
    parameters: FetchParameters,
    *,
    founds: bool,
) -> Iterator[None]:
    by_key: dict[PartitionKey, FetchPartition] = {}
    for fetched in request_partitions(request, _NO_OWNER, takes=True):
        by_key[fetched.key] = fetched
        yield
    partitions = list(by_key.values())
    del by_key
    steps = _start_full(services, context, parameters, partitions, founds=founds)
    if steps is not None:
        yield from steps


def _start_full(
    services: BrokerServices,
    context: RequestContext,
    parameters: FetchParameters,
    partitions: list[FetchPartition],
    *,
    founds: bool,
) -> Iterator[None] | None:
    """A fetch that lists all its partitions, and `founds` a session if there is room for it."""
    session: FetchSession | None = None
    if founds:
        session = services.fetch_sessions.found(
            partitions,
            count=len(partitions),
            uses_topic_ids=parameters.uses_topic_ids,
            principal=context.principal,
            is_privileged=parameters.is_from_follower,
        )
    return _start(services, context, parameters, partitions, session, is_incremental=False)


def _parameters(
    services: BrokerServices, context: RequestContext, request: FetchRequest
) -> FetchParameters:
    api_version = context.api_version
    rack_id = ""
    read_replicas = services.replica_manager.replication.read_replicas
    replica_id, replica_epoch = request.replica_id, UNKNOWN_BROKER_EPOCH
    if api_version >= FIRST_WITH_REPLICA_STATE:
        replica_id = request.replica_state.replica_id
        replica_epoch = request.replica_state.replica_epoch
    if api_version >= FIRST_FROM_FOLLOWERS and replica_id < 0:
        rack_id = read_replicas.rack_of(request.rack_id)
    max_bytes = min(max(0, request.max_bytes), services.node_config["fetch.max.bytes"])
    quotas = context.quotas
    if quotas is not None and quotas.limits_fetches and replica_id < 0:
        allowed = quotas.most_fetched(context.principal, context.client_id)
        if allowed is not None:
            max_bytes = min(max_bytes, int(allowed))
    return FetchParameters(
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(max(0, request.min_bytes), max_bytes),
        max_bytes=max_bytes,
        read_committed=request.isolation_level == READ_COMMITTED and replica_id < 0,
        leader_only=api_version < FIRST_FROM_FOLLOWERS or replica_id >= 0,
        replica_id=replica_id if replica_id >= 0 else NO_REPLICA,
        replica_epoch=replica_epoch,
        uses_topic_ids=api_version >= FIRST_BY_TOPIC_ID,
        rack_id=rack_id,
        awaits_commits=replica_id >= 0 and read_replicas.is_enabled,
    )


def _refuse(context: RequestContext, error: ErrorCode) -> None:
    """An error that concerns the request as a whole; before v7 there is no field for it."""
    if context.api_version < FIRST_WITH_SESSIONS:
        context.close(f"fetch refused: {error.name}")
    else:
        context.respond(FetchResponse(error_code=error))


def _refuse_follower(context: RequestContext, request: FetchRequest) -> None:
    """As Apache Kafka, a follower without CLUSTER_ACTION is refused each partition."""
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    context.respond(
        FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[
                        PartitionData(
                            partition_index=each.partition,
                            error_code=error,
                            high_watermark=-1,
                            records=b"",
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    )


class _Answer:
    """Builds the response, remembers what the client knows then, sends it."""

    __slots__ = ("_fetch", "_hints", "_sessions", "_topics")

    def __init__(self, sessions: FetchSessionCache, fetch: DelayedFetch) -> None:
        self._sessions = sessions
        self._fetch = fetch
        self._hints = LeaderHints(fetch.manager, fetch.context.listener_name)
        self._topics: dict[object, FetchableTopicResponse] = {}

    def is_throttled(self, outcomes: list[Outcome]) -> bool:
        """A client above its quota of bytes or of time gets an empty answer and a pause (KIP-219).
        A session learns nothing by it; one that this fetch would found is not founded.
        """
        fetch = self._fetch
        context, quotas = fetch.context, fetch.context.quotas
        if fetch.parameters.is_from_follower:
            context.exempt_from_request_quota()
            return False
        if quotas is None or not quotas.limits_fetches:
            return False
        size_bytes = total_bytes(outcomes)
        for_time_ms = context.record_request_time()
        for_bytes_ms = quotas.record_fetch(context.principal, context.client_id, size_bytes)
        if not for_time_ms and not for_bytes_ms:
            return False
        if not for_bytes_ms:
            quotas.take_back_fetch(context.principal, context.client_id, size_bytes)
        session_id = INVALID_SESSION_ID
        if fetch.session is not None:
            if fetch.is_incremental:
                session_id = fetch.session.session_id
            else:
                self._sessions.end(fetch.session.session_id)
        context.throttle(max(for_time_ms, for_bytes_ms))
        context.respond(FetchResponse(session_id=session_id, responses=[]))
        return True

    def add(self, outcomes: list[Outcome]) -> None:
        fetch, hints, topics = self._fetch, self._hints, self._topics
        session = fetch.session
        for fetched, read in outcomes:
            if fetch.is_incremental and not is_news(fetched, read):
                continue
            key = fetched.topic or fetched.topic_id
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(
                    topic=fetched.topic, topic_id=fetched.topic_id, partitions=[]
                )
            topic.partitions.append(_partition_data(fetch, fetched, read, hints))
            if session is not None:
                _remember(fetch, session, fetched, read)
            _count(fetch, fetched, read)

    def send(self, outcomes: list[Outcome]) -> None:
        fetch = self._fetch
        context, session = fetch.context, fetch.session
        response = FetchResponse(
            session_id=INVALID_SESSION_ID if session is None else session.session_id,
            responses=list(self._topics.values()),
        )
        if context.api_version >= FIRST_WITH_ENDPOINTS:
            response.node_endpoints = self._hints.endpoints(NodeEndpoint)
        if fetch.parameters.is_from_follower:
            _count_replication(fetch, outcomes)
        context.respond(response)


def _count_replication(fetch: DelayedFetch, outcomes: list[Outcome]) -> None:
    """Followers have their own quota; the bytes of those in sync count, too."""
    replication = fetch.manager.replication
    quota = replication.throttles.leader
    replication.bytes_out.count += total_bytes(outcomes)
    for fetched, read in outcomes:
        if read.size_bytes and fetched.partition is not None:
            quota.record(fetched.partition.topic_partition, read.size_bytes)


def _partition_data(
    fetch: DelayedFetch, fetched: FetchPartition, read: FetchRead, hints: LeaderHints
) -> PartitionData:
    aborted = read.aborted_transactions
    data = PartitionData(
        partition_index=fetched.partition_index,
        error_code=read.error,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [
            AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in aborted
        ],
        records=read.records,
        preferred_read_replica=read.preferred_read_replica,
    )
    if fetch.context.api_version >= FIRST_WITH_LEADER:
        if read.is_diverging:
            data.diverging_epoch = EpochEndOffset(
                epoch=read.diverging_epoch, end_offset=read.diverging_end_offset
            )
        elif read.error in WRONG_LEADER_ERRORS:
            topic = fetched.topic or fetch.manager.topic_name(fetched.topic_id) or ""
            hint = hints.leader(topic, fetched.partition_index)
            data.current_leader = LeaderIdAndEpoch(
                leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
            )
    return data


def _remember(
    fetch: DelayedFetch, session: FetchSession, fetched: FetchPartition, read: FetchRead
) -> None:
    """What the client knows now; partitions that had data go to the end of the line.

    A follower that learns here where its log diverges truncates it, and takes nothing else from
    that answer.
    """
    if read.error is ErrorCode.NONE and not read.is_diverging:
        fetched.reported_high_watermark = read.high_watermark
        fetched.reported_log_start_offset = read.log_start_offset
    else:
        fetched.reported_high_watermark = -1
    if session.partitions.get(fetched.key) is not fetched:
        return
    changed = fetch.changed_in_steps
    if read.is_starved or read.pending or (changed is not None and fetched in changed):
        # Its turn has not come yet, or it has news again: it keeps its place in the line.
        session.dirty.setdefault(fetched, None)
        return
    session.dirty.pop(fetched, None)
    if is_news(fetched, read):
        session.dirty[fetched] = None


def _count(fetch: DelayedFetch, fetched: FetchPartition, read: FetchRead) -> None:
    stats = fetch.manager.topic_stats
    partition = fetched.partition
    if partition is None:
        if read.error is not ErrorCode.NONE:
            stats.all_topics.failed_fetch_requests.count += 1
        return
    stats.all_topics.fetch_requests.count += 1
    partition.stats.fetch_requests.count += 1
    if read.size_bytes and not fetch.parameters.is_from_follower:
        stats.all_topics.bytes_out.count += read.size_bytes
        partition.stats.bytes_out.count += read.size_bytes
    elif read.error is not ErrorCode.NONE:
        stats.all_topics.failed_fetch_requests.count += 1
        partition.stats.failed_fetch_requests.count += 1
