"""What a run of records changes in an image.

Owns: sending each record to the part it belongs to. Must not: decide anything; records are facts.
Invariant: `apply` leaves the base image as it was, and parts that no record touched are shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import GeneratorType
from typing import Any, Final

from moldau.metadata.image.client_quotas import ClientQuotasDelta
from moldau.metadata.image.cluster import ClusterDelta
from moldau.metadata.image.configs import ConfigsDelta
from moldau.metadata.image.errors import InvalidMetadataRecord
from moldau.metadata.image.features import FeaturesDelta
from moldau.metadata.image.metadata_image import MetadataImage
from moldau.metadata.image.producer_ids import ProducerIdsDelta
from moldau.metadata.image.security import AclsDelta, DelegationTokensDelta, ScramDelta
from moldau.metadata.image.topics import TopicsImage
from moldau.metadata.image.topics_delta import TopicsDelta
from moldau.metadata.image.values import Provenance
from moldau.metadata.steps import Steps, at_once
from moldau.protocol import metadata_records as kinds
from moldau.protocol.schema import Message


class MetadataDelta:
    """Changes on top of `image`, collected by `replay`, made real by `apply`.

    The parts (`topics_delta`, `configs_delta`, …) tell what changed; they exist from the start and
    are cheap while nothing has.
    """

    __slots__ = (
        "acls_delta",
        "client_quotas_delta",
        "cluster_delta",
        "configs_delta",
        "delegation_tokens_delta",
        "features_delta",
        "image",
        "is_snapshot",
        "producer_ids_delta",
        "record_count",
        "scram_delta",
        "topics_delta",
        "touched",
    )

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.is_snapshot = False
        self.record_count = 0
        self.touched: set[str] = set()
        self.features_delta = FeaturesDelta(image.features)
        self.cluster_delta = ClusterDelta(image.cluster)
        self.topics_delta = TopicsDelta(image.topics)
        self.configs_delta = ConfigsDelta(image.configs)
        self.client_quotas_delta = ClientQuotasDelta(image.client_quotas)
        self.producer_ids_delta = ProducerIdsDelta(image.producer_ids)
        self.acls_delta = AclsDelta(image.acls)
        self.scram_delta = ScramDelta(image.scram)
        self.delegation_tokens_delta = DelegationTokensDelta(image.delegation_tokens)

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

        Raises:
            InvalidMetadataRecord: it contradicts the image, or its type has no place in one.
                Begin-, End- and AbortTransactionRecord are such: whoever reads the log resolves
                them.
        """
        target = _TARGETS.get(type(record))
        if target is None:
            raise InvalidMetadataRecord(f"nobody knows how to replay this record: {record}")
        part, method = target
        self.record_count += 1
        if type(record) is kinds.RemoveTopicRecord:
            self.touched.add(part)
            self.replay_remove_topic(record)
        elif part:
            self.touched.add(part)
            method(getattr(self, part), record)

    def begin_snapshot(self) -> None:
        """Say that the records to come are all there is: `finish_snapshot` removes the rest."""
        self.is_snapshot = True

    def finish_snapshot(self) -> None:
        """Remove from every part what was not replayed into this delta."""
        self.is_snapshot = True
        for part in _PARTS:
            self.touched.add(part)
            getattr(self, part).finish_snapshot()

    def apply(self, provenance: Provenance) -> MetadataImage:
        """The image after all replayed records; `provenance` says up to where it reaches."""
        return at_once(self.apply_in_steps(provenance))

    def apply_in_steps(self, provenance: Provenance) -> Steps[MetadataImage]:
        """As `apply`; nothing is replayed in between."""
        parts: dict[str, Any] = {}
        for part, image_name in _PARTS.items():
            if part not in self.touched:
                parts[image_name] = getattr(self.image, image_name)
                continue
            applied = getattr(self, part).apply()
            if isinstance(applied, GeneratorType):  # a part that may have many changes
                applied = yield from applied
            parts[image_name] = applied
        return MetadataImage(provenance=provenance, **parts)

    def replay_remove_topic(self, record: kinds.RemoveTopicRecord) -> None:
        """A deleted topic takes its configuration along; the log has no records for that."""
        topic_name = self.topics_delta.replay_remove_topic(record)
        self.touched.add("configs_delta")
        self.configs_delta.remove_topic(topic_name)


_PARTS: Final = {
    "features_delta": "features",
    "cluster_delta": "cluster",
    "topics_delta": "topics",
    "configs_delta": "configs",
    "client_quotas_delta": "client_quotas",
    "producer_ids_delta": "producer_ids",
    "acls_delta": "acls",
    "scram_delta": "scram",
    "delegation_tokens_delta": "delegation_tokens",
}


def _nothing(_part: Any, _record: Any) -> None:
    """Records that say nothing about the image."""


_Replay = Callable[[Any, Any], None]
_TARGETS: Final[dict[type[Message], tuple[str, _Replay]]] = {
    kinds.FeatureLevelRecord: ("features_delta", FeaturesDelta.replay_feature_level),
    kinds.RegisterBrokerRecord: ("cluster_delta", ClusterDelta.replay_register_broker),
    kinds.UnregisterBrokerRecord: ("cluster_delta", ClusterDelta.replay_unregister_broker),
    kinds.FenceBrokerRecord: ("cluster_delta", ClusterDelta.replay_fence_broker),
    kinds.UnfenceBrokerRecord: ("cluster_delta", ClusterDelta.replay_unfence_broker),
    kinds.BrokerRegistrationChangeRecord: (
        "cluster_delta",
        ClusterDelta.replay_broker_registration_change,
    ),
    kinds.RegisterControllerRecord: ("cluster_delta", ClusterDelta.replay_register_controller),
    kinds.TopicRecord: ("topics_delta", TopicsDelta.replay_topic),
    kinds.PartitionRecord: ("topics_delta", TopicsDelta.replay_partition),
    kinds.PartitionChangeRecord: ("topics_delta", TopicsDelta.replay_partition_change),
    kinds.RemoveTopicRecord: ("topics_delta", _nothing),
    kinds.ClearElrRecord: ("topics_delta", TopicsDelta.replay_clear_elr),
    kinds.ConfigRecord: ("configs_delta", ConfigsDelta.replay_config),
    kinds.ClientQuotaRecord: ("client_quotas_delta", ClientQuotasDelta.replay_client_quota),
    kinds.ProducerIdsRecord: ("producer_ids_delta", ProducerIdsDelta.replay_producer_ids),
    kinds.AccessControlEntryRecord: ("acls_delta", AclsDelta.replay_access_control_entry),
    kinds.RemoveAccessControlEntryRecord: (
        "acls_delta",
        AclsDelta.replay_remove_access_control_entry,
    ),
    kinds.UserScramCredentialRecord: ("scram_delta", ScramDelta.replay_user_scram_credential),
    kinds.RemoveUserScramCredentialRecord: (
        "scram_delta",
        ScramDelta.replay_remove_user_scram_credential,
    ),
    kinds.DelegationTokenRecord: (
        "delegation_tokens_delta",
        DelegationTokensDelta.replay_delegation_token,
    ),
    kinds.RemoveDelegationTokenRecord: (
        "delegation_tokens_delta",
        DelegationTokensDelta.replay_remove_delegation_token,
    ),
    kinds.NoOpRecord: ("", _nothing),
    kinds.ZkMigrationStateRecord: ("", _nothing),
}
