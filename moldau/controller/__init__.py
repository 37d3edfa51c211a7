"""Who may change the cluster: the controller's core, its driver and its log port."""

from moldau.controller.controller import Controller, RequestFailed, SnapshotPolicy
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.result import ControllerResult, VersionedRecord
from moldau.controller.core.state import ControllerSettings

__all__ = [
    "Controller",
    "ControllerCore",
    "ControllerResult",
    "ControllerSettings",
    "RequestFailed",
    "SnapshotPolicy",
    "VersionedRecord",
]
