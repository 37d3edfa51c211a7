"""The ports to the outside (clock, network, files), both ends of a socket, and telemetry.

Names are imported on first use: a serving node loads only what it needs before it listens.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.runtime.clock import Clock, ManualClock, SystemClock, TimerHandle
    from moldau.runtime.connection import (
        Connection,
        ConnectionLost,
        RequestTimedOut,
        UnsupportedByPeer,
    )
    from moldau.runtime.faults import FaultInjectingFilesystem
    from moldau.runtime.files import File, FileRegion, MappedFile
    from moldau.runtime.filesystem import DirectoryLock, Filesystem, LockHeld, OsFilesystem
    from moldau.runtime.loop_health import LoopWatchdog, freeze_garbage_collector
    from moldau.runtime.network import AsyncioNetwork, Listener, Network
    from moldau.runtime.request import Request
    from moldau.runtime.server import ListenerSpec, RequestObserver, Server, ServerLimits
    from moldau.runtime.server_connection import ServerConnection
    from moldau.runtime.timers import TimerWheel

_MODULES = {
    "clock": ("Clock", "ManualClock", "SystemClock", "TimerHandle"),
    "connection": ("Connection", "ConnectionLost", "RequestTimedOut", "UnsupportedByPeer"),
    "faults": ("FaultInjectingFilesystem",),
    "files": ("File", "FileRegion", "MappedFile"),
    "filesystem": ("DirectoryLock", "Filesystem", "LockHeld", "OsFilesystem"),
    "loop_health": ("LoopWatchdog", "freeze_garbage_collector"),
    "network": ("AsyncioNetwork", "Listener", "Network"),
    "request": ("Request",),
    "server": ("ListenerSpec", "RequestObserver", "Server", "ServerLimits"),
    "server_connection": ("ServerConnection",),
    "timers": ("TimerWheel",),
}

_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AsyncioNetwork",
    "Clock",
    "Connection",
    "ConnectionLost",
    "DirectoryLock",
    "FaultInjectingFilesystem",
    "File",
    "FileRegion",
    "Filesystem",
    "Listener",
    "ListenerSpec",
    "LockHeld",
    "LoopWatchdog",
    "ManualClock",
    "MappedFile",
    "Network",
    "OsFilesystem",
    "Request",
    "RequestObserver",
    "RequestTimedOut",
    "Server",
    "ServerConnection",
    "ServerLimits",
    "SystemClock",
    "TimerHandle",
    "TimerWheel",
    "UnsupportedByPeer",
    "freeze_garbage_collector",
]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
