"""What a disk remembers: inodes, what of them is durable, and what a crash leaves.

Owns: the model of page cache against platter. Must not: know paths (simulated_filesystem does).
Model: a file has current contents and durable contents; everything done since the last fsync is a
list of changes. A process kill keeps current contents. A power loss keeps durable contents plus any
part of the changes a real disk might have written: some prefix of them, the last one torn, single
pages missing (zeros where the file had none before). What a surviving truncation cut off never
comes back. Names behave alike against fsync of their directory; changes of one directory survive
in order, as file systems with a journal have it, while different directories and files do not wait
for each other.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Iterator

PAGE_BYTES = 512
"""Granularity of what a power loss keeps or drops; a sector, so that small tests get holes too."""


class FileNode:
    """Contents of one file. `changes` are writes (position, bytes) or truncations (size, None)."""

    __slots__ = ("changes", "data", "durable", "mapped", "modified_ms")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.changes: list[tuple[int, bytes | None]] = []
        self.mapped = False
        """Whether it was mapped since the last sync: then `data` changes without a call."""
        self.modified_ms = 0

    def write(self, position: int, data: bytes) -> None:
        if position > len(self.data):
            self.data += bytes(position - len(self.data))
        self.data[position : position + len(data)] = data
        self.changes.append((position, data))

    def truncate(self, size_bytes: int) -> None:
        if size_bytes < len(self.data):
            del self.data[size_bytes:]
        elif size_bytes > len(self.data):
            self.data += bytes(size_bytes - len(self.data))
        self.changes.append((size_bytes, None))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.changes = []

    def copy(self) -> FileNode:
        twin = FileNode()
        twin.data = bytearray(self.data)
        twin.durable = self.durable
        twin.changes = list(self.changes)
        twin.mapped = self.mapped
        twin.modified_ms = self.modified_ms
        return twin

    def survive(self, random: random_module.Random) -> None:
        """Become what a power loss leaves."""
        if bytes(self.data) != self.durable or self.changes:
            kind = random.choice(("nothing", "everything", "prefix", "pages"))
            if kind == "nothing":
                self.data = bytearray(self.durable)
            elif kind != "everything":
                contents = self._prefix(random)
                if kind == "pages":
                    contents = self._some_pages(contents, random)
                self.data = contents
        self.sync()
        self.mapped = False

    def _prefix(self, random: random_module.Random) -> bytearray:
        """Durable contents with the first changes applied, the last of them torn.

        Leaves in `durable` what pages that were not written show instead.
        """
        count = random.randint(0, len(self.changes) + (1 if self.mapped else 0))
        complete = count > len(self.changes)
        twin = FileNode()
        twin.data = bytearray(self.durable)
        for number, (position, data) in enumerate(self.changes[:count], start=1):
            if data is None:
                twin.truncate(position)
                self.durable = self.durable[:position]
            elif number == count:
                twin.write(position, data[: random.randint(0, len(data))])
            else:
                twin.write(position, data)
        return bytearray(self.data) if complete else twin.data

    def _some_pages(self, contents: bytearray, random: random_module.Random) -> bytearray:
        """Each changed page written, not written, or written up to some byte of it."""
        old = self.durable[: len(contents)].ljust(len(contents), b"\0")
        result = bytearray(contents)
        for start in range(0, len(contents), PAGE_BYTES):
            page = slice(start, start + PAGE_BYTES)
            if contents[page] != old[page] and random.random() < 0.5:
                cut = start + random.choice((0, 0, random.randint(0, PAGE_BYTES)))
                result[cut : page.stop] = old[cut : page.stop]
        return result


class DirectoryNode:
    """Names of one directory; `changes` are what happened to them since the last fsync of it."""

    __slots__ = ("changes", "durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.changes: list[tuple[str | None, str | None, Node]] = []
        """(name it lost, name it got, node)."""

    def change(self, lost: str | None, got: str | None, node: Node) -> None:
        _apply(self.entries, lost, got, node)
        self.changes.append((lost, got, node))

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.changes = []

    def survive(self, random: random_module.Random) -> None:
        """Become what a power loss leaves: of the changes none, all, or the first."""
        kind = random.choice(("none", "all", "prefix"))
        kept = self.changes
        if kind == "none":
            kept = []
        elif kind == "prefix":
            kept = kept[: random.randint(0, len(kept))]
        self.entries = dict(self.durable)
        for lost, got, node in kept:
            _apply(self.entries, lost, got, node)
        self.sync()


Node = FileNode | DirectoryNode


def _apply(entries: dict[str, Node], lost: str | None, got: str | None, node: Node) -> None:
    if lost is not None and entries.get(lost) is node:
        del entries[lost]
    if got is not None:
        entries[got] = node


class DiskImage:
    """Everything on the disk at one instant, and perhaps a write that was just happening."""

    __slots__ = ("in_flight", "root")

    def __init__(
        self, root: DirectoryNode, in_flight: tuple[FileNode, int, bytes] | None = None
    ) -> None:
        # One memo for both, so that the write in flight goes to the copied node.
        memo: dict[int, Node] = {}
        self.root = _copy_directory(root, memo)
        self.in_flight = in_flight
        if in_flight is not None:
            node, position, data = in_flight
            copied = memo.get(id(node))
            if copied is None:
                # The file has no name any more: no process can see what becomes of it.
                self.in_flight = None
            else:
                assert isinstance(copied, FileNode)
                self.in_flight = (copied, position, data)

    def after_kill(self) -> DirectoryNode:
        """The process died between two operations: the page cache is all there."""
        root = _copy_directory(self.root, {})
        for node in _nodes(root):
            if isinstance(node, FileNode):
                node.mapped = False
        return root

    def after_kill_mid_write(self, random: random_module.Random) -> DirectoryNode | None:
        """The process died inside the next write; None when the next operation is none."""
        if self.in_flight is None:
            return None
        memo: dict[int, Node] = {}
        root = _copy_directory(self.root, memo)
        node, position, data = self.in_flight
        target = memo[id(node)]
        assert isinstance(target, FileNode)
        target.write(position, data[: random.randint(0, len(data))])
        return root

    def after_power_loss(self, random: random_module.Random) -> DirectoryNode:
        """The machine died: unsynced changes survive as the seeded choice will have it."""
        root = _copy_directory(self.root, {})
        seen: set[int] = set()
        pending: list[Node] = [root]
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            node.survive(random)
            if isinstance(node, DirectoryNode):
                pending.extend(node.entries[name] for name in sorted(node.entries))
        return root


def _nodes(root: DirectoryNode) -> Iterator[Node]:
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, DirectoryNode):
            pending.extend(node.entries.values())


def _copy_directory(directory: DirectoryNode, memo: dict[int, Node]) -> DirectoryNode:
    twin = DirectoryNode()
    memo[id(directory)] = twin

    def copied(node: Node) -> Node:
        known = memo.get(id(node))
        if known is None:
            if isinstance(node, DirectoryNode):
                return _copy_directory(node, memo)
            known = memo[id(node)] = node.copy()
        return known

    twin.entries = {name: copied(node) for name, node in directory.entries.items()}
    twin.durable = {name: copied(node) for name, node in directory.durable.items()}
    twin.changes = [(lost, got, copied(node)) for lost, got, node in directory.changes]
    return twin


def deep_copy(root: DirectoryNode) -> DirectoryNode:
    """An independent copy of a whole tree."""
    return _copy_directory(root, {})


__all__ = ["DirectoryNode", "DiskImage", "FileNode", "Node", "deep_copy"]
