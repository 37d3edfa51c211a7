"""The records of brokers and controllers that register with the cluster."""

from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import ZERO_UUID, Bool, Int8, Int16, Int32, Int64, String, Uint16, Uuid


class Endpoint(Struct):
    name: String = ""
    host: String = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


class Feature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class RegisterBrokerRecord(Message, number=0, versions="0-4", flexible="0+"):
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


class UnregisterBrokerRecord(Message, number=1, versions="0", flexible="0+"):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


class FenceBrokerRecord(Message, number=7, versions="0", flexible="0+"):
    """A broker is fenced; today BrokerRegistrationChangeRecord says it."""

    id: Int32 = 0
    epoch: Int64 = 0


class UnfenceBrokerRecord(Message, number=8, versions="0", flexible="0+"):
    """A broker is unfenced; today BrokerRegistrationChangeRecord says it."""

    id: Int32 = 0
    epoch: Int64 = 0


class BrokerRegistrationChangeRecord(Message, number=17, versions="0-3", flexible="0+"):
    """A change in what is known of a registered broker: fencing, shutdown, directories."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    fenced: Int8 = field(0, tag=0)
    in_controlled_shutdown: Int8 = field(0, since=1, tag=1)
    log_dirs: list[Uuid] = field(since=2, tag=2)
    cordoned_log_dirs: list[Uuid] | None = field(None, since=3, nullable="3+", tag=3)


class RegisterControllerRecord(Message, number=27, versions="0", flexible="0+"):
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    end_points: list[Endpoint] = field()
    features: list[Feature] = field()
