"""The records of brokers and controllers that register with the cluster."""

from moldau.protocol.schema import Message, Struct, field, metadata_record, struct
from moldau.protocol.types import ZERO_UUID, Bool, Int8, Int16, Int32, Int64, String, Uint16, Uuid


@struct
class Endpoint(Struct):
    name: String = ""
    host: String = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@struct
class Feature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@metadata_record(0, versions="0-4", flexible="0+")
class RegisterBrokerRecord(Message):
    broker_id: Int32 = 0
    is_migrating_zk_broker: Bool = field(False, since=2)
    incarnation_id: Uuid = ZERO_UUID
    broker_epoch: Int64 = 0
    end_points: list[Endpoint] = field()
    features: list[Feature] = field()
    rack: String | None = field("", nullable="0+")
    fenced: Bool = True
    in_controlled_shutdown: Bool = field(False, since=1)
    log_dirs: list[Uuid] = field(since=3, tag=0)
    cordoned_log_dirs: list[Uuid] | None = field(None, since=4, nullable="4+", tag=1)


@metadata_record(1, versions="0", flexible="0+")
class UnregisterBrokerRecord(Message):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


@metadata_record(7, versions="0", flexible="0+")
class FenceBrokerRecord(Message):
    """A broker is fenced; today BrokerRegistrationChangeRecord says it."""

    id: Int32 = 0
    epoch: Int64 = 0


@metadata_record(8, versions="0", flexible="0+")
class UnfenceBrokerRecord(Message):
    """A broker is unfenced; today BrokerRegistrationChangeRecord says it."""

    id: Int32 = 0
    epoch: Int64 = 0


@metadata_record(17, versions="0-3", flexible="0+")
class BrokerRegistrationChangeRecord(Message):
    """A change in what is known of a registered broker: fencing, shutdown, directories."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    fenced: Int8 = field(0, tag=0)
    in_controlled_shutdown: Int8 = field(0, since=1, tag=1)
    log_dirs: list[Uuid] = field(since=2, tag=2)
    cordoned_log_dirs: list[Uuid] | None = field(None, since=3, nullable="3+", tag=3)


@metadata_record(27, versions="0", flexible="0+")
class RegisterControllerRecord(Message):
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    end_points: list[Endpoint] = field()
    features: list[Feature] = field()
