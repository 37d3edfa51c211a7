"""BrokerRegistrationChangeRecord (type 17, versions 0-3): a change in what is known of a
registered broker: fencing, shutdown, directories."""

from moldau.protocol.schema import Message, field, metadata_record
from moldau.protocol.types import Int8, Int32, Int64, Uuid


@metadata_record(17, versions="0-3", flexible="0+")
class BrokerRegistrationChangeRecord(Message):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    fenced: Int8 = field(0, tag=0)
    in_controlled_shutdown: Int8 = field(0, since=1, tag=1)
    log_dirs: list[Uuid] = field(since=2, tag=2)
    cordoned_log_dirs: list[Uuid] | None = field(None, since=3, nullable="3+", tag=3)
