"""Finding the topics that regular expressions of consumer groups stand for.

Owns: leaving out the topics that the member's client may not describe, having the others matched,
and telling the group. Must not: know groups, which take the result as an event, or hold the loop
for longer than a slice. Invariant: every look-up that is started ends with a result, as long as the
partition is led here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.coordinator.expressions.core.expressions import (
    InvalidExpression,
    compile_expression,
)
from moldau.broker.coordinator.group.core.consumer_group import ResolvedRegularExpression
from moldau.broker.coordinator.group.core.regular_expressions import ResolveRegularExpressions
from moldau.runtime.slices import LoopSlices

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices
    from moldau.broker.coordinator import CoordinatorRuntime
    from moldau.broker.coordinator.core.result import CoordinatorResult
    from moldau.broker.coordinator.group.core.state import GroupState


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
        slices = LoopSlices(self._services.clock)
        expressions, patterns = [], []
        for expression in sorted(command.expressions):
            try:
                patterns.append(compile_expression(expression))
                expressions.append(expression)
            except InvalidExpression:
                # Read from the log, where another coordinator let it pass; it matches nothing.
                continue
            if slices.is_over:
                await slices.next()
        names = []
        for name in list(image.topics.topics_by_name):
            if command.authorize_topic is None or command.authorize_topic(name):
                names.append(name)
            if slices.is_over:
                await slices.next()
        matched = await self._services.matcher.match(
            patterns,
            names,
            is_wanted=lambda: self._runtime.coordinator_epoch(partition_index) >= 0,
        )
        if matched is None:
            return
        found = dict.fromkeys(command.expressions, frozenset[str]())
        found.update(zip(expressions, map(frozenset, matched), strict=True))
        self._hand_over(partition_index, command, found, image.provenance.last_contained_offset)

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
