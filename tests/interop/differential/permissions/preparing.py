"""What exists before the questions, on both sides: topics, groups, transactional ids, a token
and the rules of all principals; and what is made again once a question has destroyed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from moldau.protocol.access_control import (
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import OffsetCommitRequest
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p16_list_groups import ListGroupsRequest
from moldau.protocol.messages.p19_create_topics import CreateTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p30_create_acls import CreateAclsRequest
from moldau.protocol.messages.p31_delete_acls import DeleteAclsRequest
from moldau.protocol.messages.p38_create_delegation_token import CreateDelegationTokenRequest
from moldau.protocol.messages.p41_describe_delegation_token import DescribeDelegationTokenRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.schema import Message
from tests.interop.differential.asking import build
from tests.interop.differential.permissions.principals import (
    DOOMED,
    DOOMED_GROUP,
    EVERY_USER,
    GROUP,
    HERE,
    MODERN,
    ODD_GROUP,
    ODD_TRANSACTION,
    OTHER,
    OTHER_GROUP,
    OTHER_TRANSACTION,
    OWNER,
    TOKEN_PLACE,
    TRANSACTION,
    Principal,
)
from tests.interop.differential.permissions.sides import Session, Side
from tests.kit.waiting import until

CREATED: Final = {"num_partitions": 2, "replication_factor": 1}
RULES_AT_ONCE: Final = 400
PREFIX_CHARACTERS: Final = 8
"""So much of the token's id is the prefix in a rule."""

CREATE_TOPICS, COMMIT, FIND, INIT, CREATE_ACLS, TOKENS, HEARTBEAT, LIST = 7, 9, 3, 4, 3, 3, 1, 5
DELETE_ACLS = 3


def prepare(side: Side, principals: Iterable[Principal]) -> None:
    """All of it, on one side."""
    _create_topics(side, HERE, OTHER, DOOMED)
    side.settle()
    for key_type, key in ((0, GROUP), (1, TRANSACTION)):
        _ask_until_good(side, FindCoordinatorRequest(key=key, key_type=key_type), FIND)
    for group in (GROUP, OTHER_GROUP, DOOMED_GROUP, ODD_GROUP):
        _commit(side, group)
    joining = ConsumerGroupHeartbeatRequest(
        group_id=MODERN,
        member_id="a-member",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[HERE],
        topic_partitions=[],
    )
    _ask_until_good(side, joining, HEARTBEAT)
    for identifier in (TRANSACTION, OTHER_TRANSACTION, ODD_TRANSACTION):
        request = InitProducerIdRequest(transactional_id=identifier, transaction_timeout_ms=60_000)
        _ask_until_good(side, request, INIT)
    _create_token(side)
    entries = [_placed(side, entry) for each in principals for entry in each.entries]
    for start in range(0, len(entries), RULES_AT_ONCE):
        some = entries[start : start + RULES_AT_ONCE]
        made: Any = side.ask(build(CreateAclsRequest, creations=some), CREATE_ACLS)
        wrong = [(e, r) for e, r in zip(some, made.results, strict=True) if r.error_code]
        assert not wrong, (side.name, wrong[:3])
    side.settle()


def share(side: Side, entries: list[dict[str, Any]]) -> None:
    """Have these rules for every user, and no others."""
    wanted = {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": EVERY_USER,
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": PermissionType.ANY,
    }
    gone: Any = side.ask(build(DeleteAclsRequest, filters=[wanted]), DELETE_ACLS)
    assert not any(each.error_code for each in gone.filter_results), (side.name, gone)
    if entries:
        placed = [_placed(side, entry) for entry in entries]
        made: Any = side.ask(build(CreateAclsRequest, creations=placed), CREATE_ACLS)
        assert not any(each.error_code for each in made.results), (side.name, made)
    side.settle()


def restore(side: Side) -> None:
    """Make again what a question has destroyed: the controller, and the coordinator, know what is
    gone before a broker does.
    """
    created = build(CreateTopicsRequest, topics=[{"name": DOOMED, **CREATED}])
    answer: Any = side.ask(created, CREATE_TOPICS)
    [topic] = answer.topics
    if topic.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
        assert not topic.error_code, (side.name, answer)

        def is_there() -> bool:
            side.learn_topic_ids()
            return side.topic_ids.get(DOOMED) == topic.topic_id

        until(is_there, what=f"{side.name} shows the new {DOOMED}")
    listed: Any = side.ask(ListGroupsRequest(), LIST)
    if DOOMED_GROUP not in {group.group_id for group in listed.groups}:
        _commit(side, DOOMED_GROUP)


def _create_topics(side: Side, *names: str) -> None:
    request = build(CreateTopicsRequest, topics=[{"name": name, **CREATED} for name in names])
    answer: Any = side.ask(request, CREATE_TOPICS)
    assert not any(topic.error_code for topic in answer.topics), (side.name, answer)


def _ask_until_good(side: Side, request: Message, api_version: int) -> None:
    def is_good() -> bool:
        answer: Any = side.ask(request, api_version)
        return not answer.error_code

    until(is_good, what=f"{side.name} does {request!r}")


def _commit(side: Side, group: str) -> None:
    partition = {"partition_index": 0, "committed_offset": 5}
    request = build(
        OffsetCommitRequest,
        group_id=group,
        topics=[{"name": topic, "partitions": [partition]} for topic in (HERE, OTHER)],
    )

    def is_made() -> bool:
        answer: Any = side.ask(request, COMMIT)
        codes = {each.error_code for topic in answer.topics for each in topic.partitions}
        return codes == {ErrorCode.NONE}

    until(is_made, what=f"{side.name} has offsets of {group}")


def _create_token(side: Side) -> None:
    session = Session(side, OWNER)
    try:
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        session.send([(request, TOKENS)])
        [made] = session.receive([(request, TOKENS)])
        assert not made.error_code, (side.name, made)  # type: ignore[union-attr]
        side.hmac = bytes(made.hmac)  # type: ignore[union-attr]
        token_id: str = made.token_id  # type: ignore[union-attr]
        side.aliases[token_id] = TOKEN_PLACE
        question = DescribeDelegationTokenRequest(owners=None)

        def is_there() -> bool:
            session.send([(question, TOKENS)])
            [told] = session.receive([(question, TOKENS)])
            return bool(told.tokens)  # type: ignore[union-attr]

        until(is_there, what=f"{side.name} shows its token")
    finally:
        session.close()


def _placed(side: Side, entry: dict[str, Any]) -> dict[str, Any]:
    """A rule about the token names this side's own."""
    if entry["resource_name"] != TOKEN_PLACE:
        return entry
    [token_id] = [own for own, word in side.aliases.items() if word == TOKEN_PLACE]
    whole = entry["resource_pattern_type"] == 3
    return {**entry, "resource_name": token_id if whole else token_id[:PREFIX_CHARACTERS]}
