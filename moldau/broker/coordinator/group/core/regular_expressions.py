"""Subscriptions of consumer groups by regular expression (KIP-848).

Owns whether an expression is valid, when the expressions of a group are looked up again, and what
the result means for the group. Must not match topics: a command asks for that, because a cluster
may have many topics, and the result comes as an event. Invariant: at most one look-up per group
runs at a time, and one begins at most every 10 seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from moldau.broker.coordinator.core.expressions import InvalidExpression, compile_expression
from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    ConsumerGroupMember,
    ResolvedRegularExpression,
    regular_expression_record,
)
from moldau.broker.coordinator.group.core.context import ClientInfo, Refusal
from moldau.protocol.errors import ErrorCode

MIN_REFRESH_INTERVAL_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ResolveRegularExpressions:
    """A command: find the topics whose whole names match each expression and that the member's
    client may describe, and hand them to `ConsumerGroups.regular_expressions_resolved`.
    """

    group_id: str
    member_id: str
    expressions: frozenset[str]
    authorize_topic: Callable[[str], bool] | None
    principal: str = ""
    """Whose look-up it is."""


class Change(Enum):
    """How a member's heartbeat changed its subscription by expression."""

    NONE = 0
    UPDATED = 1
    UPDATED_AND_RESOLVED = 2
    """The topics of the new subscription are known already."""


class Plan(NamedTuple):
    """The records and the look-up that a heartbeat leads to."""

    change: Change
    records: list[CoordinatorRecord]
    command: ResolveRegularExpressions | None


class RegularExpressions:
    """The expressions of all groups of one coordinator partition."""

    def __init__(self, refresh_interval_ms: int) -> None:
        self._refresh_interval_ms = refresh_interval_ms
        self._running: set[str] = set()
        self.new_topics_offset = 0
        """The metadata offset at which topics were last created."""

    def plan(
        self,
        group: ConsumerGroup,
        old: ConsumerGroupMember,
        new: ConsumerGroupMember,
        client: ClientInfo,
        now_ms: float,
    ) -> Plan:
        """What a member's heartbeat leads to. Raises: Refusal, INVALID_REGULAR_EXPRESSION."""
        before, after = old.subscribed_topic_regex or "", new.subscribed_topic_regex or ""
        records: list[CoordinatorRecord] = []
        change = Change.NONE
        needs_look_up = False
        if before != after:
            change = Change.UPDATED
            if before and group.regex_counts[before] == 1:
                records.append(regular_expression_record(group.group_id, before, None))
            if not after or after in group.resolved:
                change = Change.UPDATED_AND_RESOLVED
            if after and not group.regex_counts[after]:
                try:
                    compile_expression(after)
                except InvalidExpression as error:
                    raise Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
                needs_look_up = True
                change = Change.UPDATED
        elif not group.regex_counts:
            return Plan(Change.NONE, [], None)
        wanted = set(group.regex_counts)
        if before != after:
            if before and group.regex_counts[before] == 1:
                wanted.discard(before)
            if after:
                wanted.add(after)
        if not wanted or group.group_id in self._running:
            return Plan(change, records, None)
        last = next(iter(group.resolved.values()), None)  # all of a group's are resolved at once
        if last is not None:
            age_ms = now_ms - last.timestamp_ms
            if 0 <= age_ms < MIN_REFRESH_INTERVAL_MS:
                return Plan(change, records, None)
            needs_look_up = (
                needs_look_up
                or last.metadata_offset < self.new_topics_offset
                # Below zero: the wall clock was set back, and the age of the result is unknown.
                or not 0 <= age_ms < self._refresh_interval_ms
            )
        if not needs_look_up and wanted == set(group.resolved):
            return Plan(change, records, None)
        command = ResolveRegularExpressions(
            group.group_id,
            new.member_id,
            frozenset(wanted),
            client.authorize_topic,
            client.principal,
        )
        return Plan(change, records, command)

    def started(self, group_id: str) -> None:
        self._running.add(group_id)

    def ended(self, group_id: str) -> None:
        self._running.discard(group_id)


def resolution_records(
    group: ConsumerGroup, resolved: Mapping[str, ResolvedRegularExpression]
) -> tuple[list[CoordinatorRecord], set[str], bool]:
    """The records of a look-up, the group's subscribed topics with it, and whether they differ."""
    records = []
    changed = False
    names = {}
    for expression, result in resolved.items():
        if not group.regex_counts[expression]:
            continue
        before = group.resolved.get(expression)
        if before is None or before.topic_names != result.topic_names:
            changed = changed or bool(result.topic_names) or bool(before and before.topic_names)
        names[expression] = result.topic_names
        records.append(regular_expression_record(group.group_id, expression, result))
    subscribed: set[str] = set()
    for member in group.members.values():
        subscribed |= member.subscribed_topic_names
    for expression in group.regex_counts:
        if expression in names:
            subscribed |= names[expression]
        elif expression in group.resolved:
            subscribed |= group.resolved[expression].topic_names
    return records, subscribed, changed


def expression_tombstones(
    group: ConsumerGroup, leaving: list[ConsumerGroupMember]
) -> list[CoordinatorRecord]:
    """The end of expressions that have no subscriber when `leaving` have left."""
    counts = Counter(filter(None, [member.subscribed_topic_regex for member in leaving]))
    return [
        regular_expression_record(group.group_id, expression, None)
        for expression, count in counts.items()
        if group.regex_counts[expression] == count
    ]
