"""The commands of `moldau metadata shell`: ls, cd, pwd, cat, find, tree, man, exit.

Owns: paths, wildcards, and what each command prints. Must not: read files or know what the tree
stands for. Invariant: a mistake is one line and leaves the shell where it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Final

from moldau.cli.metadata_tree import Directory, Leaf, Node

MANUAL: Final = {
    "cat": ("cat PATH…", "Print the value of each path."),
    "cd": ("cd [PATH]", "Go to a directory; to the root when none is given."),
    "exit": ("exit", "Leave the shell; so does the end of the input."),
    "find": ("find [PATH…]", "List every path below, one a line."),
    "help": ("help", "List the commands."),
    "ls": ("ls [PATH…]", "List directories; a directory's name ends in /."),
    "man": ("man [COMMAND]", "Explain a command."),
    "pwd": ("pwd", "Print the current directory."),
    "tree": ("tree [PATH…]", "Show everything below, with values."),
}
ALIASES: Final = {"quit": "exit"}
WILDCARDS: Final = frozenset("*?[")


class ShellError(Exception):
    """A command that cannot be done; one line that says why."""


class Shell:
    """One user's walk through a tree.

    Args:
        say: gets what commands print, a line (or several) at a time.
    """

    def __init__(self, root: Directory, say: Callable[[str], None]) -> None:
        self._root = root
        self._say = say
        self._where: tuple[str, ...] = ()
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "cat": self._cat,
            "cd": self._cd,
            "find": self._find,
            "help": self._help,
            "ls": self._ls,
            "man": self._man,
            "pwd": self._pwd,
            "tree": self._tree,
        }
        self.has_ended = False

    @property
    def directory(self) -> str:
        """Where it is."""
        return "/" + "/".join(self._where)

    def run(self, line: str) -> None:
        """Do one line; nothing for an empty one. Raises: ShellError."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ShellError(f"{line!r}: {error}") from None
        if words:
            self.run_words(words)

    def run_words(self, words: list[str]) -> None:
        """Do one command. Raises: ShellError."""
        name = ALIASES.get(words[0], words[0])
        if name == "exit":
            self.has_ended = True
            return
        command = self._commands.get(name)
        if command is None:
            raise ShellError(f"{name}: no such command; there are {', '.join(MANUAL)}")
        command(words[1:])

    def complete(self, line: str) -> list[str]:
        """What the last word of a line may become."""
        head, _, word = line.rpartition(" ")
        if not head:
            return [f"{name} " for name in MANUAL if name.startswith(word)]
        parent, slash, prefix = word.rpartition("/")
        try:
            node = self._one(parent + slash if slash else ".")
        except ShellError:
            return []
        if not isinstance(node, Directory):
            return []
        return [
            parent + slash + name + ("/" if isinstance(child, Directory) else " ")
            for name, child in node.children.items()
            if name.startswith(prefix)
        ]

    # -- commands --------------------------------------------------------------------------------

    def _cat(self, arguments: list[str]) -> None:
        if not arguments:
            raise ShellError("cat: which path?")
        for path, node in self._all(arguments):
            if isinstance(node, Directory):
                raise ShellError(f"cat: {path} is a directory")
            self._say(node.text())

    def _cd(self, arguments: list[str]) -> None:
        if len(arguments) > 1:
            raise ShellError("cd: one directory only")
        [(path, node), *others] = self._all(arguments or ["/"])
        if others:
            raise ShellError(f"cd: {arguments[0]} matches several")
        if not isinstance(node, Directory):
            raise ShellError(f"cd: {path} is not a directory")
        self._where = _parts(path)

    def _pwd(self, arguments: list[str]) -> None:
        self._say(self.directory)

    def _ls(self, arguments: list[str]) -> None:
        found = list(self._all(arguments or ["."]))
        for path, node in found:
            if isinstance(node, Leaf):
                self._say(path)
        directories = [(path, node) for path, node in found if isinstance(node, Directory)]
        for path, node in directories:
            if len(found) > 1:
                self._say(f"{path}:")
            for name, child in node.children.items():
                self._say(_shown(name, child))

    def _find(self, arguments: list[str]) -> None:
        for path, node in self._all(arguments or ["."]):
            self._say(path)
            for below, _ in _walk(path, node):
                self._say(below)

    def _tree(self, arguments: list[str]) -> None:
        for path, node in self._all(arguments or ["."]):
            if isinstance(node, Leaf):
                self._say(node.text())
                continue
            self._say(path)
            for below, child in _walk(path, node):
                depth = below.count("/") - (0 if path == "/" else path.count("/"))
                self._say("  " * depth + _shown(below.rpartition("/")[2], child))
                if isinstance(child, Leaf):
                    indent = "  " * (depth + 1)
                    self._say("\n".join(indent + line for line in child.text().split("\n")))

    def _help(self, arguments: list[str]) -> None:
        for usage, explanation in MANUAL.values():
            self._say(f"{usage:14}{explanation}")

    def _man(self, arguments: list[str]) -> None:
        if not arguments:
            self._help([])
        for name in arguments:
            if name not in MANUAL:
                raise ShellError(f"man: {name} is no command; there are {', '.join(MANUAL)}")
            usage, explanation = MANUAL[name]
            self._say(f"{usage}\n    {explanation}")

    # -- paths -----------------------------------------------------------------------------------

    def _one(self, path: str) -> Node:
        return next(iter(self._all([path])))[1]

    def _all(self, paths: list[str]) -> list[tuple[str, Node]]:
        """What paths with wildcards stand for, in order; each stands for something."""
        found = []
        for path in paths:
            matches = [("/" + "/".join(parts), node) for parts, node in self._matches(path)]
            if not matches:
                raise ShellError(f"{path}: no such file or directory")
            found += matches
        return found

    def _matches(self, path: str) -> list[tuple[tuple[str, ...], Node]]:
        start = () if path.startswith("/") else self._where
        wanted = _resolved(start, _parts(path))
        nodes: list[tuple[tuple[str, ...], Node]] = [((), self._root)]
        for pattern in wanted:
            nodes = [
                ((*parts, name), child)
                for parts, node in nodes
                if isinstance(node, Directory)
                for name, child in _children_like(node, pattern)
            ]
        return nodes


def _children_like(directory: Directory, pattern: str) -> Iterator[tuple[str, Node]]:
    exact = directory.children.get(pattern)
    if exact is not None:
        yield pattern, exact
    elif WILDCARDS & set(pattern):
        for name, child in directory.children.items():
            if fnmatchcase(name, pattern):
                yield name, child


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part and part != ".")


def _resolved(start: tuple[str, ...], parts: tuple[str, ...]) -> tuple[str, ...]:
    """With every `..` gone; the root is its own parent."""
    resolved = list(start)
    for part in parts:
        if part != "..":
            resolved.append(part)
        elif resolved:
            resolved.pop()
    return tuple(resolved)


def _walk(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Everything below, depth first."""
    if isinstance(node, Directory):
        for name, child in node.children.items():
            below = f"{path.rstrip('/')}/{name}"
            yield below, child
            yield from _walk(below, child)


def _shown(name: str, node: Node) -> str:
    return f"{name}/" if isinstance(node, Directory) else name
