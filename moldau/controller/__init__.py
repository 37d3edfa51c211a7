"""Who may change the cluster: the controller's core, its driver and its log port."""

from moldau.controller.controller import Controller, RequestFailed
from moldau.controller.core.controller_core import ControllerCore, Role
from moldau.controller.core.result import ControllerResult, VersionedRecord
from moldau.controller.core.state import ControllerSettings
from moldau.controller.log_port import (
    CommittedBatch,
    LoadedSnapshot,
    MetadataLog,
    MetadataLogListener,
)
from moldau.controller.snapshot_policy import SnapshotPolicy

__all__ = [
    "CommittedBatch",
    "Controller",
    "ControllerCore",
    "ControllerResult",
    "ControllerSettings",
    "LoadedSnapshot",
    "MetadataLog",
    "MetadataLogListener",
    "RequestFailed",
    "Role",
    "SnapshotPolicy",
    "VersionedRecord",
]
