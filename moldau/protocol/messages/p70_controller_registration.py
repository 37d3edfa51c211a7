"""ControllerRegistration (70) v0: a controller registers with the active controller."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Bool, Int16, Int32, String, Uint16, Uuid


@struct
class Listener(Struct):
    name: String = ""
    host: String = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@struct
class Feature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@request(ApiKey.CONTROLLER_REGISTRATION, versions="0", flexible="0+")
class ControllerRegistrationRequest(Request["ControllerRegistrationResponse"]):
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    listeners: list[Listener] = field()
    features: list[Feature] = field()


@response(ApiKey.CONTROLLER_REGISTRATION, versions="0", flexible="0+")
class ControllerRegistrationResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
