"""Finding the topics that regular expressions of consumer groups stand for.

Owns: matching topic names, a slice at a time so that a cluster with many topics does not stall the
loop, and dropping those that the member's client may not describe. Must not: know groups, which
take the result as an event. Invariant: every look-up that is started ends with a result, as long
as the partition is led here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from moldau.broker.group.core.consumer_group import ResolvedRegularExpression
from moldau.broker.group.core.context import Refusal
from moldau.broker.group.core.regular_expressions import (
    ResolveRegularExpressions,
    compile_expression,
)

if TYPE_CHECKING:
    from moldau.broker.coordinator import CoordinatorRuntime
    from moldau.broker.coordinator.core.result import CoordinatorResult
    from moldau.broker.group.core.state import GroupState
    from moldau.broker.services import BrokerServices

_SLICE: Final = 256
"""Matches and permissions looked at before others have their turn: about a millisecond."""


class RegularExpressionResolver:
    """Carries out `ResolveRegularExpressions` for all partitions of a group coordinator."""

    def __init__(self, services: BrokerServices, runtime: CoordinatorRuntime[GroupState]) -> None:
        self._services = services
        self._runtime = runtime

    def start(self, partition_index: int, command: ResolveRegularExpressions) -> None:
        """Begin a look-up; its result goes to the partition's state machine."""
        self._services.start(
            self._resolve(partition_index, command),
            f"regular expressions of group {command.group_id}",
        )

    async def _resolve(self, partition_index: int, command: ResolveRegularExpressions) -> None:
        image = self._services.metadata.image
        patterns = []
        found: dict[str, list[str]] = {expression: [] for expression in command.expressions}
        for expression in sorted(command.expressions):
            try:
                patterns.append((expression, compile_expression(expression)))
            except Refusal:
                # Read from the log, where another coordinator let it pass; it matches nothing.
                continue
        looked_at = 0
        allowed: dict[str, bool] = {}
        for name in list(image.topics.topics_by_name):
            for expression, pattern in patterns:
                looked_at += 1
                if pattern.fullmatch(name) is None:
                    continue
                if name not in allowed:
                    allowed[name] = command.authorize_topic is None or command.authorize_topic(name)
                if allowed[name]:
                    found[expression].append(name)
            if looked_at >= _SLICE:
                looked_at = 0
                await asyncio.sleep(0)
        self._hand_over(
            partition_index,
            command,
            {expression: frozenset(names) for expression, names in found.items()},
            image.provenance.last_contained_offset,
        )

    def _hand_over(
        self,
        partition_index: int,
        command: ResolveRegularExpressions,
        found: dict[str, frozenset[str]],
        metadata_offset: int,
    ) -> None:
        def operation(state: GroupState, now_ms: float) -> CoordinatorResult:
            return state.consumer_groups.regular_expressions_resolved(
                command,
                {
                    expression: ResolvedRegularExpression(names, metadata_offset, int(now_ms))
                    for expression, names in found.items()
                },
            )

        self._runtime.call(partition_index, operation, passes_limit=True)
