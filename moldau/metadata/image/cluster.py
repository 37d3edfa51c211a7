"""What belongs to the cluster as a whole: registrations, finalized features, producer ids.

Owns: what the records about brokers, controllers, feature levels and blocks of producer ids say.
Must not: judge whether a registration was right to happen, or know what a level means. Invariant: a
record about a broker names the broker epoch that the image holds; anything else means that the log
and the image have parted. A level is at least 1, and level 0 is the same as absent. The next
producer id never goes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from moldau.metadata.features import (
    CONTROLLER_REGISTRATION_LEVEL,
    METADATA_VERSION,
    MINIMUM_METADATA_LEVEL,
    feature_records,
    range_entries,
    register_broker_record_version,
)
from moldau.metadata.image.overlay import MappingDelta, overlay
from moldau.metadata.image.values import (
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    InvalidMetadataRecord,
    LevelRange,
)
from moldau.protocol import metadata_records as kinds
from moldau.protocol.metadata_records import nodes
from moldau.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Brokers and controllers by id."""

    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    controllers: Mapping[int, ControllerRegistration] = field(default_factory=dict)

    def write(self, metadata_level: int) -> Iterator[tuple[Message, int]]:
        version = register_broker_record_version(metadata_level)
        for broker_id in sorted(self.brokers):
            yield _broker_record(self.brokers[broker_id], version), version
        if metadata_level >= CONTROLLER_REGISTRATION_LEVEL:
            for controller_id in sorted(self.controllers):
                yield _controller_record(self.controllers[controller_id]), 0


@dataclass(slots=True, eq=False, repr=False)
class ClusterDelta:
    """Changes to registrations; None stands for a broker that was unregistered."""

    _image: ClusterImage
    changed_brokers: dict[int, BrokerRegistration | None] = field(default_factory=dict)
    changed_controllers: dict[int, ControllerRegistration | None] = field(default_factory=dict)

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        if broker_id in self.changed_brokers:
            return self.changed_brokers[broker_id]
        return self._image.brokers.get(broker_id)

    def replay_register_broker(self, record: kinds.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self.changed_brokers[record.broker_id] = BrokerRegistration(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners=_listeners(record.end_points),
            supported_features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            directories=tuple(sorted(record.log_dirs)),
            cordoned_directories=None if cordoned is None else tuple(sorted(cordoned)),
        )

    def replay_unregister_broker(self, record: kinds.UnregisterBrokerRecord) -> None:
        self._expect(record.broker_id, record.broker_epoch, record)
        self.changed_brokers[record.broker_id] = None

    def replay_fence_broker(self, record: kinds.FenceBrokerRecord) -> None:
        """Old form of a fencing."""
        registration = self._expect(record.id, record.epoch, record)
        self.changed_brokers[record.id] = replace(registration, fenced=True)

    def replay_unfence_broker(self, record: kinds.UnfenceBrokerRecord) -> None:
        registration = self._expect(record.id, record.epoch, record)
        self.changed_brokers[record.id] = replace(registration, fenced=False)

    def replay_broker_registration_change(
        self, record: kinds.BrokerRegistrationChangeRecord
    ) -> None:
        """Fencing (1), unfencing (-1), the begin of a controlled shutdown (1), new directories."""
        registration = self._expect(record.broker_id, record.broker_epoch, record)
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["directories"] = tuple(sorted(record.log_dirs))
        if record.cordoned_log_dirs is not None:
            changes["cordoned_directories"] = tuple(sorted(record.cordoned_log_dirs))
        self.changed_brokers[record.broker_id] = replace(registration, **changes)

    def replay_register_controller(self, record: kinds.RegisterControllerRecord) -> None:
        self.changed_controllers[record.controller_id] = ControllerRegistration(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            zk_migration_ready=record.zk_migration_ready,
            listeners=_listeners(record.end_points),
            supported_features=_features(record.features),
        )

    def finish_snapshot(self) -> None:
        for broker_id in self._image.brokers:
            self.changed_brokers.setdefault(broker_id, None)
        for controller_id in self._image.controllers:
            self.changed_controllers.setdefault(controller_id, None)

    def apply(self) -> ClusterImage:
        return ClusterImage(
            overlay(self._image.brokers, self.changed_brokers),
            overlay(self._image.controllers, self.changed_controllers),
        )

    def _expect(self, broker_id: int, broker_epoch: int, record: Message) -> BrokerRegistration:
        registration = self.broker(broker_id)
        if registration is None:
            raise InvalidMetadataRecord(f"no such broker is registered: {record}")
        if registration.broker_epoch != broker_epoch:
            raise InvalidMetadataRecord(
                f"broker {broker_id} has broker epoch {registration.broker_epoch}: {record}"
            )
        return registration


def _listeners(end_points: Sequence[nodes.Endpoint]) -> Mapping[str, Endpoint]:
    return {
        each.name: Endpoint(each.host, each.port, each.security_protocol) for each in end_points
    }


def _features(features: Sequence[nodes.Feature]) -> Mapping[str, LevelRange]:
    return {
        each.name: LevelRange(each.min_supported_version, each.max_supported_version)
        for each in features
    }


def _broker_record(registration: BrokerRegistration, version: int) -> kinds.RegisterBrokerRecord:
    cordoned: list[UUID] | None = None
    if version >= 4 and registration.cordoned_directories is not None:
        cordoned = list(registration.cordoned_directories)
    return kinds.RegisterBrokerRecord(
        broker_id=registration.broker_id,
        is_migrating_zk_broker=version >= 2 and registration.is_migrating_zk_broker,
        incarnation_id=registration.incarnation_id,
        broker_epoch=registration.broker_epoch,
        end_points=_end_points(registration),
        features=range_entries(nodes.Feature, sorted(registration.supported_features.items())),
        rack=registration.rack,
        fenced=registration.fenced,
        in_controlled_shutdown=version >= 1 and registration.in_controlled_shutdown,
        log_dirs=list(registration.directories) if version >= 3 else [],
        cordoned_log_dirs=cordoned,
    )


def _controller_record(registration: ControllerRegistration) -> kinds.RegisterControllerRecord:
    return kinds.RegisterControllerRecord(
        controller_id=registration.controller_id,
        incarnation_id=registration.incarnation_id,
        zk_migration_ready=registration.zk_migration_ready,
        end_points=_end_points(registration),
        features=range_entries(nodes.Feature, sorted(registration.supported_features.items())),
    )


def _end_points(registration: BrokerRegistration | ControllerRegistration) -> list[nodes.Endpoint]:
    return [
        nodes.Endpoint(
            name=name,
            host=endpoint.host,
            port=endpoint.port,
            security_protocol=endpoint.security_protocol,
        )
        for name, endpoint in sorted(registration.listeners.items())
    ]


@dataclass(frozen=True, slots=True)
class FeaturesImage:
    """The finalized level of each feature, by name."""

    finalized_levels: Mapping[str, int] = field(default_factory=dict)

    @property
    def metadata_level(self) -> int:
        """The finalized `metadata.version`; the oldest one while the log has not said any."""
        return self.finalized_levels.get(METADATA_VERSION, MINIMUM_METADATA_LEVEL)

    def level(self, feature: str) -> int:
        """The finalized level of `feature`, 0 when it is off."""
        return self.finalized_levels.get(feature, 0)

    def write(self) -> Iterator[tuple[Message, int]]:
        yield from feature_records(self.finalized_levels)


class FeaturesDelta(MappingDelta[str, int, FeaturesImage]):
    """Changes to feature levels; None stands for one that is switched off."""

    def replay_feature_level(self, record: kinds.FeatureLevelRecord) -> None:
        self.changes[record.name] = record.feature_level or None


class ProducerIdsImage(NamedTuple):
    """`next_producer_id` begins the next block to hand out; -1 before the first block."""

    next_producer_id: int = -1

    def write(self) -> Iterator[tuple[Message, int]]:
        if self.next_producer_id >= 0:
            record = kinds.ProducerIdsRecord(
                broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id
            )
            yield record, 0


class ProducerIdsDelta:
    """A newly handed out block."""

    def __init__(self, image: ProducerIdsImage) -> None:
        self.next_producer_id = image.next_producer_id

    def replay_producer_ids(self, record: kinds.ProducerIdsRecord) -> None:
        if record.next_producer_id < self.next_producer_id:
            raise InvalidMetadataRecord(
                f"producer ids go back from {self.next_producer_id}: {record}"
            )
        self.next_producer_id = record.next_producer_id

    def finish_snapshot(self) -> None:
        """Producer ids never go back: a snapshot that does not speak of them leaves them."""

    def apply(self) -> ProducerIdsImage:
        return ProducerIdsImage(self.next_producer_id)
