"""RegisterBrokerRecord (type 0, versions 0-4): a broker registers."""

from moldau.protocol.schema import Message, Struct, field, metadata_record, struct
from moldau.protocol.types import ZERO_UUID, Bool, Int16, Int32, Int64, String, Uint16, Uuid


@struct
class BrokerEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@struct
class BrokerFeature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@metadata_record(0, versions="0-4", flexible="0+")
class RegisterBrokerRecord(Message):
    broker_id: Int32 = 0
    is_migrating_zk_broker: Bool = field(False, since=2)
    incarnation_id: Uuid = ZERO_UUID
    broker_epoch: Int64 = 0
    end_points: list[BrokerEndpoint] = field()
    features: list[BrokerFeature] = field()
    rack: String | None = field("", nullable="0+")
    fenced: Bool = True
    in_controlled_shutdown: Bool = field(False, since=1)
    log_dirs: list[Uuid] = field(since=3, tag=0)
    cordoned_log_dirs: list[Uuid] | None = field(None, since=4, nullable="4+", tag=1)
