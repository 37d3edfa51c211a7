"""The values between coordinators' state machines and the runtime that drives them."""

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    CoordinatorState,
    Producer,
    Reply,
    ReplyTo,
    SetTimer,
)

__all__ = [
    "CancelTimer",
    "CoordinatorRecord",
    "CoordinatorResult",
    "CoordinatorState",
    "Producer",
    "Reply",
    "ReplyTo",
    "SetTimer",
]
