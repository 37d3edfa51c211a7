"""Assignors of the classic group protocol, and how `partition.assignment.strategy` names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from moldau.client.consumer.assignors.assignor import (
    Assignments,
    ConsumerPartitionAssignor,
    MemberAssignment,
    PartitionRacks,
    RebalanceProtocol,
    Subscription,
    Topics,
)
from moldau.client.consumer.assignors.range import RangeAssignor
from moldau.client.consumer.assignors.roundrobin import RoundRobinAssignor
from moldau.client.consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from moldau.client.errors import ConfigurationError

__all__ = [
    "ASSIGNORS",
    "Assignments",
    "AssignorLike",
    "ConsumerPartitionAssignor",
    "CooperativeStickyAssignor",
    "MemberAssignment",
    "PartitionRacks",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Subscription",
    "Topics",
    "make_assignors",
    "rebalance_protocol",
]

AssignorLike: TypeAlias = str | type[ConsumerPartitionAssignor] | ConsumerPartitionAssignor
"""A built-in assignor's name (Java's class names are understood too), a class, or an instance."""

_KINDS: Final[tuple[type[ConsumerPartitionAssignor], ...]] = (
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    CooperativeStickyAssignor,
)

ASSIGNORS: Final[Mapping[str, type[ConsumerPartitionAssignor]]] = MappingProxyType(
    {
        **{kind.name: kind for kind in _KINDS},
        **{f"org.apache.kafka.clients.consumer.{kind.__name__}": kind for kind in _KINDS},
    }
)


def make_assignors(
    strategies: Iterable[AssignorLike | object],
) -> tuple[ConsumerPartitionAssignor, ...]:
    """Fresh assignors, in order of preference. Raises: ConfigurationError on a name that is none, a
    class that is no assignor, a name twice, or nothing at all.
    """
    assignors = [_make(strategy) for strategy in strategies]
    names = [each.name for each in assignors]
    if not names:
        raise ConfigurationError("partition.assignment.strategy: at least one assignor is needed")
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"partition.assignment.strategy: {name} is there twice")
    return tuple(assignors)


def rebalance_protocol(assignors: Iterable[ConsumerPartitionAssignor]) -> RebalanceProtocol:
    """The best way of handing over partitions that all of them know (KIP-429). Raises:
    ConfigurationError when they have none in common.
    """
    common = set(RebalanceProtocol)
    for assignor in assignors:
        common &= set(assignor.supported_protocols)
    if not common:
        raise ConfigurationError(
            "partition.assignment.strategy: these assignors have no rebalance protocol in common"
        )
    return max(common)


def _make(strategy: object) -> ConsumerPartitionAssignor:
    if isinstance(strategy, ConsumerPartitionAssignor):
        return strategy
    if isinstance(strategy, type) and issubclass(strategy, ConsumerPartitionAssignor):
        return strategy()
    kind = ASSIGNORS.get(strategy) if isinstance(strategy, str) else None
    if kind is None:
        known = ", ".join(each.name for each in _KINDS)
        raise ConfigurationError(
            f"partition.assignment.strategy: {strategy!r} is none of {known}, and no "
            "ConsumerPartitionAssignor"
        )
    return kind()
