"""RegisterControllerRecord (type 27, version 0): a controller registers."""

from moldau.protocol.schema import Message, Struct, field, metadata_record, struct
from moldau.protocol.types import ZERO_UUID, Bool, Int16, Int32, String, Uint16, Uuid


@struct
class ControllerEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@struct
class ControllerFeature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@metadata_record(27, versions="0", flexible="0+")
class RegisterControllerRecord(Message):
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    end_points: list[ControllerEndpoint] = field()
    features: list[ControllerFeature] = field()
