"""What the cluster is: one immutable image per offset of the metadata log, and their deltas.

One record family is one image and one delta (features, cluster, topics, configs, client quotas,
producer ids, access rules, SCRAM credentials, delegation tokens).
"""

from moldau.metadata.image.cluster import (
    ClusterDelta,
    ClusterImage,
    FeaturesDelta,
    FeaturesImage,
    ProducerIdsImage,
)
from moldau.metadata.image.configs import (
    ClientQuotasImage,
    ConfigResource,
    ConfigResourceType,
    ConfigsDelta,
    ConfigsImage,
)
from moldau.metadata.image.metadata_image import MetadataDelta, MetadataImage, TransactionFilter
from moldau.metadata.image.security import AclsImage, DelegationTokensImage, ScramImage
from moldau.metadata.image.topics import (
    LocalChanges,
    TopicDelta,
    TopicImage,
    TopicsDelta,
    TopicsImage,
)
from moldau.metadata.image.values import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    InvalidMetadataRecord,
    LevelRange,
    PartitionRegistration,
    Provenance,
)

__all__ = [
    "LOST_DIRECTORY",
    "MIGRATING_DIRECTORY",
    "NO_LEADER",
    "UNASSIGNED_DIRECTORY",
    "AclsImage",
    "BrokerRegistration",
    "ClientQuotasImage",
    "ClusterDelta",
    "ClusterImage",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigsDelta",
    "ConfigsImage",
    "ControllerRegistration",
    "DelegationTokensImage",
    "Endpoint",
    "FeaturesDelta",
    "FeaturesImage",
    "InvalidMetadataRecord",
    "LevelRange",
    "LocalChanges",
    "MetadataDelta",
    "MetadataImage",
    "PartitionRegistration",
    "ProducerIdsImage",
    "Provenance",
    "ScramImage",
    "TopicDelta",
    "TopicImage",
    "TopicsDelta",
    "TopicsImage",
    "TransactionFilter",
]
