"""Subscriptions of consumer groups by regular expression (KIP-848).

Owns whether an expression is valid, when the expressions of a group are looked up again, and what
the result means for the group. Must not match topics: a command asks for that, because a cluster
may have many topics, and the result comes as an event. Invariant: at most one look-up per group
runs at a time, and one begins at most every 10 seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from moldau.broker.coordinator.core.expressions import InvalidExpression, compile_expression
from moldau.broker.coordinator.core.result import CoordinatorRecord, CoordinatorResult
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    ConsumerGroupMember,
    ResolvedRegularExpression,
    regular_expression_record,
)
from moldau.broker.coordinator.group.core.context import ClientInfo, Refusal
from moldau.protocol.errors import ErrorCode

MIN_REFRESH_INTERVAL_MS: Final = 10_000


class ResolveRegularExpressions(NamedTuple):
    """A command: find the topics whose whole names match each expression and that the member's
    client may describe, and hand them to `ConsumerGroups.regular_expressions_resolved`.
    """

    group_id: str
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
        out: CoordinatorResult,
    ) -> Change:
        """How a member's heartbeat changes its subscription; `out` gets the records and the look-up
        that it leads to. Raises: Refusal, INVALID_REGULAR_EXPRESSION.
        """
        before, after = old.subscribed_topic_regex or "", new.subscribed_topic_regex or ""
        change = Change.NONE
        needs_look_up = False
        wanted = set(group.regex_counts)
        if before != after:
            change = Change.UPDATED
            if before and group.regex_counts[before] == 1:
                out.records.append(regular_expression_record(group.group_id, before, None))
                wanted.discard(before)
            if not after or after in group.resolved:
                change = Change.UPDATED_AND_RESOLVED
            if after and not group.regex_counts[after]:
                try:
                    compile_expression(after)
                except InvalidExpression as error:
                    raise Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
                needs_look_up = True
                change = Change.UPDATED
            if after:
                wanted.add(after)
        if self._are_due(group, wanted, needs_look_up, now_ms):
            out.commands.append(
                ResolveRegularExpressions(
                    group.group_id, frozenset(wanted), client.authorize_topic, client.principal
                )
            )
        return change

    def _are_due(
        self, group: ConsumerGroup, wanted: set[str], needs_look_up: bool, now_ms: float
    ) -> bool:
        """Whether the wanted expressions are to be looked up now."""
        if not wanted or group.group_id in self._running:
            return False
        last = next(iter(group.resolved.values()), None)  # all of a group's are resolved at once
        if last is None:
            return True
        age_ms = now_ms - last.timestamp_ms
        if _is_younger(age_ms, MIN_REFRESH_INTERVAL_MS):
            return False
        return (
            needs_look_up
            or wanted != set(group.resolved)
            or last.metadata_offset < self.new_topics_offset
            or not _is_younger(age_ms, self._refresh_interval_ms)
        )

    def started(self, group_id: str) -> None:
        self._running.add(group_id)

    def ended(self, group_id: str) -> None:
        self._running.discard(group_id)


def _is_younger(age_ms: float, interval_ms: float) -> bool:
    """Below zero the wall clock was set back, and the age of a result is unknown."""
    return 0 <= age_ms < interval_ms


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
