"""ZkMigrationStateRecord (type 21, version 0): how far a migration from ZooKeeper got."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import Int8


@metadata_record(21, versions="0", flexible="0+")
class ZkMigrationStateRecord(Message):
    zk_migration_state: Int8 = 0
