"""Who in a consumer group gets which partitions: the server-side assignors of KIP-848.

`ASSIGNORS` has them by the name that `group.consumer.assignors` and members use. Each is a plain
function from a `GroupSpec` to the partitions of every member. None looks at racks (as Kafka 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from moldau.broker.coordinator.group.core.assignors.range import assign_range
from moldau.broker.coordinator.group.core.assignors.spec import GroupSpec, MemberSpec
from moldau.broker.coordinator.group.core.assignors.uniform import assign_uniform
from moldau.broker.coordinator.group.core.consumer_member import Assignment

Assignor = Callable[[GroupSpec], dict[str, Assignment]]

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_range}
)

__all__ = ["ASSIGNORS", "Assignor", "GroupSpec", "MemberSpec", "assign_range", "assign_uniform"]
