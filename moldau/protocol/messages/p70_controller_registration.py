"""ControllerRegistration (70) v0: a controller registers with the active controller."""

from moldau.protocol.messages.p62_broker_registration import Feature, Listener
from moldau.protocol.schema import ExplainedResponse, Request, field
from moldau.protocol.types import ZERO_UUID, Bool, Int32, Uuid


class ControllerRegistrationRequest(
    Request["ControllerRegistrationResponse"], versions="0", flexible="0+"
):
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    listeners: list[Listener] = field()
    features: list[Feature] = field()


class ControllerRegistrationResponse(ExplainedResponse, answers=ControllerRegistrationRequest):
    """It says no more."""
