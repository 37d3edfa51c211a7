"""The records of configuration, quotas, features, producer ids and metadata transactions."""

from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import Bool, Float64, Int8, Int16, Int32, Int64, String


class ConfigRecord(Message, number=4, versions="0", flexible="0+"):
    """One configuration value of a resource, set or removed."""

    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    value: String | None = field("", nullable="0+")


class EntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = field("", nullable="0+")


class ClientQuotaRecord(Message, number=14, versions="0", flexible="0+"):
    """A client quota, set or removed."""

    entity: list[EntityData] = field()
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class FeatureLevelRecord(Message, number=12, versions="0", flexible="0+"):
    name: String = ""
    feature_level: Int16 = 0


class ProducerIdsRecord(Message, number=15, versions="0", flexible="0+"):
    """The end of the producer ids handed out so far."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


class ZkMigrationStateRecord(Message, number=21, versions="0", flexible="0+"):
    """How far a migration from ZooKeeper got."""

    zk_migration_state: Int8 = 0


class NoOpRecord(Message, number=20, versions="0", flexible="0+"):
    """Says nothing; its offset shows that the controller is alive."""


class BeginTransactionRecord(Message, number=23, versions="0", flexible="0+"):
    """Opens a group of records that count together."""

    name: String | None = field(None, nullable="0+", tag=0)


class EndTransactionRecord(Message, number=24, versions="0", flexible="0+"):
    """Ends a group of records that now count."""


class AbortTransactionRecord(Message, number=25, versions="0", flexible="0+"):
    """Ends a group of records that then never happened."""

    reason: String | None = field(None, nullable="0+", tag=0)
