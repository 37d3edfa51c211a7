"""The records of configuration, quotas, features, producer ids and metadata transactions."""

from moldau.protocol.schema import Message, Struct, field, metadata_record, struct
from moldau.protocol.types import Bool, Float64, Int8, Int16, Int32, Int64, String


@metadata_record(4, versions="0", flexible="0+")
class ConfigRecord(Message):
    """One configuration value of a resource, set or removed."""

    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    value: String | None = field("", nullable="0+")


@struct
class EntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = field("", nullable="0+")


@metadata_record(14, versions="0", flexible="0+")
class ClientQuotaRecord(Message):
    """A client quota, set or removed."""

    entity: list[EntityData] = field()
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


@metadata_record(12, versions="0", flexible="0+")
class FeatureLevelRecord(Message):
    name: String = ""
    feature_level: Int16 = 0


@metadata_record(15, versions="0", flexible="0+")
class ProducerIdsRecord(Message):
    """The end of the producer ids handed out so far."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@metadata_record(21, versions="0", flexible="0+")
class ZkMigrationStateRecord(Message):
    """How far a migration from ZooKeeper got."""

    zk_migration_state: Int8 = 0


@metadata_record(20, versions="0", flexible="0+")
class NoOpRecord(Message):
    """Says nothing; its offset shows that the controller is alive."""


@metadata_record(23, versions="0", flexible="0+")
class BeginTransactionRecord(Message):
    """Opens a group of records that count together."""

    name: String | None = field(None, nullable="0+", tag=0)


@metadata_record(24, versions="0", flexible="0+")
class EndTransactionRecord(Message):
    """Ends a group of records that now count."""


@metadata_record(25, versions="0", flexible="0+")
class AbortTransactionRecord(Message):
    """Ends a group of records that then never happened."""

    reason: String | None = field(None, nullable="0+", tag=0)
