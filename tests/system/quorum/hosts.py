"""Several hosts on this machine: network namespaces joined by a bridge, whose links can be cut.

Owns the namespaces, their addresses (10.213.0.0/24, in namespaces only) and the cuts. Must not:
touch the machine's own network: even the bridge lies in a namespace. Invariant: leaving the context
removes every namespace.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, TypeVar

HUB: Final = "hub"
NETWORK: Final = "10.213.0"
HUB_NUMBER: Final = 254
NETNS_DIRECTORY: Final = "/var/run/netns"
_CLONE_NEWNET: Final = 0x40000000

Result = TypeVar("Result")


def why_not() -> str:
    """Why there can be no such hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2's ip"
    name = f"moldau-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"no network namespace can be made: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """Named hosts with an address each, and the hub, from where a test reaches them all."""

    def __init__(self, names: Sequence[str]) -> None:
        self._prefix = f"moldau-{os.getpid()}-"
        self._addresses = {name: f"{NETWORK}.{index + 1}" for index, name in enumerate(names)}
        self._addresses[HUB] = f"{NETWORK}.{HUB_NUMBER}"
        self._cuts: list[tuple[str, str]] = []

    def address(self, name: str) -> str:
        """The host's address."""
        return self._addresses[name]

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on a host."""
        return ["ip", "netns", "exec", self._prefix + name, *command]

    def cut(self, one: str, other: str) -> None:
        """Nothing gets through between two hosts any more, in either direction."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """What `sender` sends to `receiver` vanishes, without an error for either."""
        if (sender, receiver) not in self._cuts:
            self._cuts.append((sender, receiver))
            self._route(sender, "add", receiver)

    def mend_one_way(self, sender: str, receiver: str) -> None:
        """Undo one `cut_one_way`; nothing when there is none."""
        if (sender, receiver) in self._cuts:
            self._cuts.remove((sender, receiver))
            self._route(sender, "del", receiver)

    def isolate(self, name: str) -> None:
        """Cut a host off from all others but the hub."""
        for other in self._addresses:
            if other not in (name, HUB):
                self.cut(name, other)

    def heal(self) -> None:
        """Undo every cut."""
        cuts, self._cuts = self._cuts, []
        for sender, receiver in cuts:
            self._route(sender, "del", receiver)

    def from_hub(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call `function` in a thread that lives in the hub: sockets it makes belong there."""

        def run() -> Result:
            _enter(f"{NETNS_DIRECTORY}/{self._prefix}{HUB}")
            return function(*arguments)

        with ThreadPoolExecutor(1) as fresh_thread:
            return fresh_thread.submit(run).result()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def _build(self) -> None:
        hub = self._prefix + HUB
        for name in self._addresses:
            _ip("netns", "add", self._prefix + name)
            _ip("-n", self._prefix + name, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{self._addresses[HUB]}/24", "dev", "bridge0")
        _ip("-n", hub, "link", "set", "bridge0", "up")
        for index, (name, address) in enumerate(self._addresses.items()):
            if name == HUB:
                continue
            host = self._prefix + name
            _ip(
                *("-n", hub, "link", "add", f"port{index}", "type", "veth"),
                *("peer", "name", "eth0", "netns", host),
            )
            _ip("-n", hub, "link", "set", f"port{index}", "master", "bridge0", "up")
            _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for name in self._addresses:
            subprocess.run(["ip", "netns", "del", self._prefix + name], capture_output=True)

    def _route(self, host: str, action: str, receiver: str) -> None:
        _ip("-n", self._prefix + host, "route", action, "blackhole", self._addresses[receiver])


def _enter(path: str) -> None:
    """Move the calling thread into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
