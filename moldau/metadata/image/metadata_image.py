"""The whole of the cluster's metadata at one offset of its log.

Owns: the parts, their order when written as a snapshot, and the digest by which two nodes compare
theirs.
Must not: change. Invariant: replaying `write()` into the empty image gives an equal image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from moldau.metadata.image.client_quotas import ClientQuotasImage
from moldau.metadata.image.cluster import ClusterImage
from moldau.metadata.image.configs import ConfigsImage
from moldau.metadata.image.features import FeaturesImage
from moldau.metadata.image.producer_ids import ProducerIdsImage
from moldau.metadata.image.security import AclsImage, DelegationTokensImage, ScramImage
from moldau.metadata.image.topics import TopicsImage
from moldau.metadata.image.values import Provenance
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
