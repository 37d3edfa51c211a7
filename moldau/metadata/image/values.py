"""The immutable values that the images are made of, and the error of a record that fits none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID


class InvalidMetadataRecord(Exception):
    """A record that does not fit the image it is applied to, or is of an unknown type.

    The metadata cannot be trusted any further: the node has to stop rather than skip it.
    """


NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2
RECOVERED: Final = 0
RECOVERING: Final = 1

MIGRATING_DIRECTORY: Final = UUID(int=0)
"""A replica whose directory is not known yet, but was chosen earlier (KIP-858)."""
UNASSIGNED_DIRECTORY: Final = UUID(int=1)
"""A new replica, for which its broker still has to choose a directory."""
LOST_DIRECTORY: Final = UUID(int=2)
"""A replica whose directory is gone."""


class Provenance(NamedTuple):
    """Up to where in the log an image reaches. -1 means nothing yet."""

    last_contained_offset: int = -1
    last_contained_epoch: int = -1
    last_contained_log_time_ms: int = -1


class Endpoint(NamedTuple):
    """One advertised address; `security_protocol` is Kafka's id (0 PLAINTEXT, 1 SSL, …)."""

    host: str
    port: int
    security_protocol: int


class LevelRange(NamedTuple):
    """Feature levels that a node supports, both ends included."""

    minimum_level: int
    maximum_level: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """One broker as it registered itself. `broker_epoch` is the offset of its registration record.

    Invariant: a fenced broker leads nothing and is in no ISR that has another member.
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: UUID
    listeners: Mapping[str, Endpoint]
    supported_features: Mapping[str, LevelRange] = field(default_factory=dict)
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    is_migrating_zk_broker: bool = False
    directories: tuple[UUID, ...] = ()
    cordoned_directories: tuple[UUID, ...] | None = None


class ControllerRegistration(NamedTuple):
    """One controller as it registered itself (KIP-919)."""

    controller_id: int
    incarnation_id: UUID
    zk_migration_ready: bool
    listeners: Mapping[str, Endpoint]
    supported_features: Mapping[str, LevelRange]


class PartitionRegistration(NamedTuple):
    """One partition's state. `leader` is -1 without one; `elr` are the eligible leaders of KIP-966.

    `leader_epoch` counts leader changes, `partition_epoch` every change.
    """

    replicas: tuple[int, ...]
    directories: tuple[UUID, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_recovery_state: int = RECOVERED
    leader_epoch: int = 0
    partition_epoch: int = 0

    def directory(self, broker_id: int) -> UUID:
        """The log directory of `broker_id`'s replica. Raises ValueError when it has none."""
        return self.directories[self.replicas.index(broker_id)]

    @property
    def has_preferred_leader(self) -> bool:
        """Whether the first replica leads."""
        return self.leader == self.replicas[0]

    @property
    def is_reassigning(self) -> bool:
        """Whether replicas are being moved (KIP-455)."""
        return bool(self.adding_replicas or self.removing_replicas)
