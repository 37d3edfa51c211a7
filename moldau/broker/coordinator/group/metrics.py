"""What the group coordinator counts, under Kafka's names.

Owns the registration of its gauges and counters. Must not keep state of its own beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.coordinator.group.core.classic_group import ClassicGroupState

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.state import GroupState
    from moldau.runtime.telemetry.metrics import Counter, Registry

MANAGER: Final = "kafka.coordinator.group:type=GroupMetadataManager,name="
COORDINATOR: Final = "kafka.server:type=group-coordinator-metrics,name="
KINDS: Final = ("classic", "consumer")
CONSUMER_STATES: Final = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")
COUNTED: Final = (
    "offset-commit",
    "offset-expiration",
    "offset-deletion",
    "group-completed-rebalance",
    "consumer-group-rebalance",
)


class GroupMetrics:
    """Gauges over the loaded partitions, and counters of events."""

    def __init__(
        self, registry: Registry, states: Callable[[], Iterator[tuple[int, GroupState]]]
    ) -> None:
        self._registry = registry
        self._states = states
        self._counters: dict[str, Counter] = {}
        for name in COUNTED:
            self.count(name, 0)
        registry.gauge(MANAGER + "NumOffsets", self._offset_count)
        registry.gauge(MANAGER + "NumGroups", lambda: self._group_count(lambda group: True))
        for state in ClassicGroupState:
            registry.gauge(f"{MANAGER}NumGroups{state.value}", partial(self._in_state, state.value))
        for kind in KINDS:
            registry.gauge(
                COORDINATOR + "group-count",
                partial(self._of_kind, kind),
                protocol=kind,
            )
        for name in CONSUMER_STATES:
            registry.gauge(
                COORDINATOR + "consumer-group-count",
                partial(self._in_state, name, "consumer"),
                state=name.lower(),
            )

    def count(self, name: str, amount: int) -> None:
        """Count events."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._registry.counter(f"{COORDINATOR}{name}-count")
            self._counters[name] = counter
        counter.value += amount

    def _offset_count(self) -> float:
        return float(sum(state.offsets.count for _, state in self._states()))

    def _in_state(self, name: str, kind: str = "classic") -> float:
        return self._group_count(lambda group: group.kind == kind and group.state_name == name)

    def _of_kind(self, kind: str) -> float:
        return self._group_count(lambda group: group.kind == kind)

    def _group_count(self, is_counted: Callable[[Any], bool]) -> float:
        # The copy is atomic, and whoever collects may do so in another thread.
        return float(
            sum(
                is_counted(group)
                for _, state in self._states()
                for group in list(state.groups.values())
            )
        )
