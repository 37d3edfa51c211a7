"""Who may change the cluster: the controller's core, its driver and its log port."""

from moldau.metadata.controller.controller import Controller, RequestFailed
from moldau.metadata.controller.core.controller_core import ControllerCore, Role
from moldau.metadata.controller.core.result import ControllerResult, VersionedRecord
from moldau.metadata.controller.core.settings import ControllerSettings
from moldau.metadata.controller.log_port import (
    CommittedBatch,
    LoadedSnapshot,
    MetadataLog,
    MetadataLogListener,
)
from moldau.metadata.controller.snapshot_policy import SnapshotPolicy

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
