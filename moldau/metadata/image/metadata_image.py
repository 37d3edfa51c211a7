"""The whole of the cluster's metadata at one offset of its log, and what a run of records changes.

Owns: the parts, their order when written as a snapshot, the digest by which two nodes compare
theirs, the part that each record belongs to, and the records of an open metadata transaction
(KIP-868). Must not: decide anything; records are facts. Invariants: replaying `write()` into the
empty image gives an equal image; `apply` leaves the base image as it was, and parts that no record
touched are shared; what TransactionFilter hands out was either outside of any transaction or part
of a completed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import Any, ClassVar, Final

from moldau.metadata.image.cluster import (
    ClusterDelta,
    ClusterImage,
    FeaturesDelta,
    FeaturesImage,
    ProducerIdsDelta,
    ProducerIdsImage,
)
from moldau.metadata.image.configs import (
    ClientQuotasDelta,
    ClientQuotasImage,
    ConfigsDelta,
    ConfigsImage,
)
from moldau.metadata.image.security import (
    AclsDelta,
    AclsImage,
    DelegationTokensDelta,
    DelegationTokensImage,
    ScramDelta,
    ScramImage,
)
from moldau.metadata.image.topics import TopicsDelta, TopicsImage
from moldau.metadata.image.values import InvalidMetadataRecord, Provenance
from moldau.metadata.steps import Steps, at_once
from moldau.protocol import metadata_records as kinds
from moldau.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """What the cluster is. `EMPTY` is how every log begins."""

    provenance: Provenance = field(default_factory=Provenance)
    features: FeaturesImage = field(default_factory=FeaturesImage)
    cluster: ClusterImage = field(default_factory=ClusterImage)
    topics: TopicsImage = field(default_factory=TopicsImage)
    configs: ConfigsImage = field(default_factory=ConfigsImage)
    client_quotas: ClientQuotasImage = field(default_factory=ClientQuotasImage)
    producer_ids: ProducerIdsImage = field(default_factory=ProducerIdsImage)
    acls: AclsImage = field(default_factory=AclsImage)
    scram: ScramImage = field(default_factory=ScramImage)
    delegation_tokens: DelegationTokensImage = field(default_factory=DelegationTokensImage)

    EMPTY: ClassVar[MetadataImage]

    def write(self) -> Iterator[tuple[Message, int]]:
        """The records, each with its version, that make this image out of the empty one.

        Versions are those of the image's own `metadata.version`, so that every node of the cluster
        can read them. The order is always the same for equal images.
        """
        metadata_level = self.features.metadata_level
        yield from self.features.write()
        yield from self.cluster.write(metadata_level)
        yield from self.topics.write(metadata_level)
        yield from self.configs.write()
        yield from self.client_quotas.write()
        yield from self.producer_ids.write()
        yield from self.acls.write()
        yield from self.scram.write()
        yield from self.delegation_tokens.write()

    def digest(self) -> str:
        """A hexadecimal SHA-256 over the content, not the provenance: equal for equal images."""
        hasher = hashlib.sha256()
        for record, version in self.write():
            data = record.to_bytes(version)
            hasher.update(b"%d %d %d\n" % (record.API_KEY, version, len(data)))
            hasher.update(data)
        return hasher.hexdigest()


MetadataImage.EMPTY = MetadataImage()


class MetadataDelta:
    """Changes on top of `image`, collected by `replay`, made real by `apply`.

    The parts (`topics_delta`, `configs_delta`, …) tell what changed; they exist from the start and
    are cheap while nothing has.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.touched: set[str] = set()
        self.features_delta = FeaturesDelta(image.features.finalized_levels, FeaturesImage)
        self.cluster_delta = ClusterDelta(image.cluster)
        self.topics_delta = TopicsDelta(image.topics)
        self.configs_delta = ConfigsDelta(image.configs.configs_by_resource, ConfigsImage)
        self.client_quotas_delta = ClientQuotasDelta(
            image.client_quotas.quotas_by_entity, ClientQuotasImage
        )
        self.producer_ids_delta = ProducerIdsDelta(image.producer_ids)
        self.acls_delta = AclsDelta(image.acls.entries_by_id, AclsImage)
        self.scram_delta = ScramDelta(image.scram)
        self.delegation_tokens_delta = DelegationTokensDelta(
            image.delegation_tokens.tokens_by_id, DelegationTokensImage
        )

    @classmethod
    def from_nothing(cls, image: MetadataImage) -> MetadataDelta:
        """What makes `image` out of the empty one, as if a snapshot of it had been replayed."""
        delta = cls(MetadataImage.EMPTY)
        # Topics are nearly all there is in a big image: they take the short way.
        for record, _version in replace(image, topics=TopicsImage()).write():
            delta.replay(record)
        delta.topics_delta = TopicsDelta.from_nothing(image.topics)
        delta.finish_snapshot()
        return delta

    def replay(self, record: Message) -> None:
        """Take over one record.

        Raises InvalidMetadataRecord: it contradicts the image, or its type has no place in one.
        Begin-, End- and AbortTransactionRecord have none: TransactionFilter resolves them before.
        """
        target = _TARGETS.get(type(record))
        if target is None:
            if isinstance(record, _SAYING_NOTHING):
                return
            raise InvalidMetadataRecord(f"no part of the image replays this record: {record}")
        part, method = target
        self.touched.add(part)
        if type(record) is kinds.RemoveTopicRecord:
            # A deleted topic takes its configuration along; the log has no records for that.
            self.touched.add("configs_delta")
            self.configs_delta.remove_topic(self.topics_delta.replay_remove_topic(record))
        else:
            method(getattr(self, part), record)

    def finish_snapshot(self) -> None:
        """The records so far are all there is: remove from every part what was not replayed."""
        for part in _PARTS:
            self.touched.add(part)
            getattr(self, part).finish_snapshot()

    def apply(self, provenance: Provenance) -> MetadataImage:
        """The image after all replayed records; `provenance` says up to where it reaches."""
        return at_once(self.apply_in_steps(provenance))

    def apply_in_steps(self, provenance: Provenance) -> Steps[MetadataImage]:
        """As `apply`; nothing is replayed in between."""
        parts: dict[str, Any] = {}
        for part in _PARTS:
            image_name = part.removesuffix("_delta")
            if part not in self.touched:
                parts[image_name] = getattr(self.image, image_name)
                continue
            applied = getattr(self, part).apply()
            if isinstance(applied, GeneratorType):  # a part that may have many changes
                applied = yield from applied
            parts[image_name] = applied
        return MetadataImage(provenance=provenance, **parts)


_PARTS: Final[Mapping[str, type]] = {
    "features_delta": FeaturesDelta,
    "cluster_delta": ClusterDelta,
    "topics_delta": TopicsDelta,
    "configs_delta": ConfigsDelta,
    "client_quotas_delta": ClientQuotasDelta,
    "producer_ids_delta": ProducerIdsDelta,
    "acls_delta": AclsDelta,
    "scram_delta": ScramDelta,
    "delegation_tokens_delta": DelegationTokensDelta,
}
_Replay = Callable[[Any, Any], None]
_TARGETS: Final[Mapping[type[Message], tuple[str, _Replay]]] = {
    getattr(kinds, f"{name.removeprefix('replay_').title().replace('_', '')}Record"): (part, method)
    for part, delta in _PARTS.items()
    for name, method in vars(delta).items()
    if name.startswith("replay_")
}
"""What replays a record: the method of a part that is named after it."""
_SAYING_NOTHING: Final = (kinds.NoOpRecord, kinds.ZkMigrationStateRecord)


MAX_TRANSACTION_RECORDS: Final = 1_000_000


class TransactionFilter:
    """Takes committed records in order, gives those that may be applied."""

    def __init__(self) -> None:
        self._held: list[Message] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and not ended yet."""
        return self._held is not None

    def reset(self) -> None:
        """Forget an open transaction: a snapshot was loaded, which never contains one."""
        self._held = None

    def feed(self, records: Iterable[Message]) -> list[Message]:
        """The records that became applicable.

        Raises InvalidMetadataRecord: transaction records out of turn, or a transaction of more than
        MAX_TRANSACTION_RECORDS records.
        """
        ready: list[Message] = []
        for record in records:
            kind = type(record)
            if kind is kinds.BeginTransactionRecord:
                if self._held is not None:
                    raise InvalidMetadataRecord("a metadata transaction begins inside another")
                self._held = []
            elif kind is kinds.EndTransactionRecord or kind is kinds.AbortTransactionRecord:
                if self._held is None:
                    raise InvalidMetadataRecord(f"no metadata transaction is open: {record}")
                if kind is kinds.EndTransactionRecord:
                    ready.extend(self._held)
                self._held = None
            elif self._held is None:
                ready.append(record)
            else:
                if len(self._held) >= MAX_TRANSACTION_RECORDS:
                    raise InvalidMetadataRecord(
                        f"a metadata transaction of over {MAX_TRANSACTION_RECORDS} records"
                    )
                self._held.append(record)
        return ready
