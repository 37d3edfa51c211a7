"""OffsetCommit, OffsetFetch, TxnOffsetCommit.

Owns who may commit for a group. Must not keep offsets: the group does. Invariant: an offset is
stored only for a current member, or for a group without members.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages import p09_offset_fetch as fetch
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.p28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.fake_broker.context import Context, Handler
from tests.fake_broker.group import GroupState, StoredOffset
from tests.fake_broker.group_apis import current_member
from tests.fake_broker.groups import FakeGroup

_COMMIT_BY_ID_SINCE = 10
_FETCH_BY_ID_SINCE = 10
_MANY_GROUPS_SINCE = 8
_MEMBERS_SINCE = 3
_IMPLICIT_SINCE = 5
_STALE_EPOCH_SINCE = 9
MAX_METADATA_BYTES = 4096


async def offset_commit(context: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Store offsets."""
    cluster = context.cluster
    whole = cluster.groups.here(context, request.group_id)
    if not whole:
        whole = _refused_member(
            context,
            cluster.groups.get(request.group_id),
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
        )
    response = OffsetCommitResponse()
    for topic in request.topics:
        name: str | None = topic.name
        if context.version >= _COMMIT_BY_ID_SINCE:
            found = cluster.topic_by_id(topic.topic_id)
            name = None if found is None else found.name
        answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answer)
        for part in topic.partitions:
            error = whole or _refused_offset(context, name, part)
            if not error and name is not None:
                group = cluster.groups.get(request.group_id)
                group.offsets[name, part.partition_index] = _stored(part)
                error = context.afterthought("partition", name, part.partition_index)
            answer.partitions.append(
                OffsetCommitResponsePartition(
                    partition_index=part.partition_index, error_code=error
                )
            )
    cluster.grew()
    return response


def _stored(part: Any) -> StoredOffset:
    return StoredOffset(part.committed_offset, part.committed_leader_epoch, part.committed_metadata)


def _refused_offset(context: Context, name: str | None, part: Any) -> ErrorCode:
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    error = context.refusal("partition", name, part.partition_index) or context.refusal("top")
    if error:
        return error
    if context.cluster.partition(name, part.partition_index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len((part.committed_metadata or "").encode()) > MAX_METADATA_BYTES:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _refused_member(
    context: Context,
    group: FakeGroup,
    member_id: str,
    instance_id: str | None,
    generation_id: int,
) -> ErrorCode:
    """Why a commit is not a current member's."""
    if generation_id < 0 and not member_id and instance_id is None:
        return ErrorCode.NONE if group.is_empty else ErrorCode.UNKNOWN_MEMBER_ID
    if group.consumer.members:
        member = group.consumer.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation_id == member.epoch:
            return ErrorCode.NONE
        is_stale = generation_id < member.epoch
        if is_stale and context.version >= _STALE_EPOCH_SINCE:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.FENCED_MEMBER_EPOCH if not is_stale else ErrorCode.UNSUPPORTED_VERSION
    _, error = current_member(group.classic, member_id, instance_id, generation_id)
    if not error and group.classic.state is GroupState.COMPLETING:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    return error


async def offset_fetch(
    context: Context, request: fetch.OffsetFetchRequest
) -> fetch.OffsetFetchResponse:
    """Read offsets: one group's before version 8, many groups' since."""
    if context.version < _MANY_GROUPS_SINCE:
        return _fetch_one(context, request)
    response = fetch.OffsetFetchResponse()
    for asked in request.groups:
        error = context.refusal("top") or context.cluster.groups.here(context, asked.group_id)
        answer = fetch.OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
        response.groups.append(answer)
        if error:
            continue
        group = context.cluster.groups.get(asked.group_id)
        if asked.member_id:
            answer.error_code = _refused_reader(group, asked)
            if answer.error_code:
                continue
        for key, name, indexes in _asked_topics(context, group, asked.topics):
            uses_ids = context.version >= _FETCH_BY_ID_SINCE
            topic = fetch.OffsetFetchResponseTopics()
            if uses_ids:
                topic.topic_id = key
            else:
                topic.name = key
            for index in indexes:
                stored, error = _offset(context, group, name, index, request.require_stable)
                topic.partitions.append(
                    fetch.OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=stored.offset,
                        committed_leader_epoch=stored.leader_epoch,
                        metadata=stored.metadata,
                        error_code=error,
                    )
                )
            answer.topics.append(topic)
    return response


def _refused_reader(group: FakeGroup, asked: Any) -> ErrorCode:
    if not group.consumer.members:
        return ErrorCode.NONE
    member = group.consumer.members.get(asked.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if asked.member_epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH


def _asked_topics(
    context: Context, group: FakeGroup, topics: Iterable[Any] | None
) -> list[tuple[Any, str | None, list[int]]]:
    """(name or id as the answer has it, name, partitions) of each topic asked for."""
    uses_ids = context.version >= _FETCH_BY_ID_SINCE
    if topics is None:
        named: dict[str, list[int]] = {}
        for name, index in group.offsets:
            named.setdefault(name, []).append(index)
        known = context.cluster.topics
        return [
            (known[name].topic_id if uses_ids else name, name, indexes)
            for name, indexes in named.items()
            if name in known or not uses_ids
        ]
    answer: list[tuple[Any, str | None, list[int]]] = []
    for topic in topics:
        if uses_ids:
            found = context.cluster.topic_by_id(topic.topic_id)
            name = found.name if found else None
            answer.append((topic.topic_id, name, topic.partition_indexes))
        else:
            answer.append((topic.name, topic.name, topic.partition_indexes))
    return answer


def _offset(
    context: Context, group: FakeGroup, name: str | None, index: int, require_stable: bool
) -> tuple[StoredOffset, ErrorCode]:
    none = StoredOffset(-1)
    if name is None:
        return none, ErrorCode.UNKNOWN_TOPIC_ID
    error = context.refusal("partition", name, index)
    if not error and require_stable and group.is_pending(name, index):
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT
    if error:
        return none, error
    return group.offsets.get((name, index), none), ErrorCode.NONE


def _fetch_one(context: Context, request: fetch.OffsetFetchRequest) -> fetch.OffsetFetchResponse:
    error = context.refusal("top") or context.cluster.groups.here(context, request.group_id)
    if error:
        return fetch.OffsetFetchResponse(error_code=error)
    response = fetch.OffsetFetchResponse()
    group = context.cluster.groups.get(request.group_id)
    for key, name, indexes in _asked_topics(context, group, request.topics):
        topic = fetch.OffsetFetchResponseTopic(name=key)
        for index in indexes:
            stored, error = _offset(context, group, name, index, request.require_stable)
            topic.partitions.append(
                fetch.OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=stored.offset,
                    committed_leader_epoch=stored.leader_epoch,
                    metadata=stored.metadata,
                    error_code=error,
                )
            )
        response.topics.append(topic)
    return response


async def txn_offset_commit(
    context: Context, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Store offsets until their transaction ends."""
    cluster = context.cluster
    whole = cluster.groups.here(context, request.group_id) or _refused_transaction(context, request)
    group = cluster.groups.get(request.group_id)
    names_member = request.generation_id >= 0 or request.member_id
    if not whole and context.version >= _MEMBERS_SINCE and names_member:
        whole = _refused_member(
            context, group, request.member_id, request.group_instance_id, request.generation_id
        )
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        answer = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            error = _refused_offset(context, topic.name, part) or whole
            if not error:
                transaction = cluster.transactions.find(request.transactional_id)
                assert transaction is not None
                cluster.transactions.join_group(transaction, request.group_id)
                pending = group.pending.setdefault(request.producer_id, {})
                pending[topic.name, part.partition_index] = _stored(part)
            answer.partitions.append(
                TxnOffsetCommitResponsePartition(
                    partition_index=part.partition_index, error_code=error
                )
            )
    cluster.grew()
    return response


def _refused_transaction(context: Context, request: TxnOffsetCommitRequest) -> ErrorCode:
    transactions = context.cluster.transactions
    error = transactions.check(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        fenced=ErrorCode.INVALID_PRODUCER_EPOCH,
    )
    if error:
        return error
    transaction = transactions.find(request.transactional_id)
    assert transaction is not None
    if request.group_id in transaction.group_ids:
        return ErrorCode.NONE
    if context.version >= _IMPLICIT_SINCE and transactions.is_version_2:
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
}
