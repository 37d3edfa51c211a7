"""What the cluster is: one immutable image per offset of the metadata log, and their deltas.

One record family is one image and one delta (features, cluster, topics, configs, client quotas,
producer ids, access rules, SCRAM credentials, delegation tokens).
"""

from moldau.metadata.image.cluster import ClusterImage
from moldau.metadata.image.configs import ConfigResource, ConfigResourceType, ConfigsImage
from moldau.metadata.image.metadata_image import MetadataDelta, MetadataImage, TransactionFilter
from moldau.metadata.image.topics import TopicImage, TopicsDelta, TopicsImage
from moldau.metadata.image.values import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    BrokerRegistration,
    InvalidMetadataRecord,
    LevelRange,
    PartitionRegistration,
    Provenance,
)
