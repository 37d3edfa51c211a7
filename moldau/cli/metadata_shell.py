"""`moldau metadata shell`: the metadata image as a tree of paths, and the commands that walk it.

Owns which paths there are and what they show, wildcards, and what ls, cd, pwd, cat, find, tree, man
and exit print. Must not read files. Invariants: secrets (salts, keys) are never shown; a
directory's children are made when it is first looked into; a mistake is one line and leaves the
shell where it was.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias
from uuid import UUID

from moldau.cli.metadata_files import MetadataFiles
from moldau.metadata.features import METADATA_VERSION, metadata_release
from moldau.metadata.image import ConfigResourceType, MetadataImage, TopicImage
from moldau.metadata.scram_secret import SECRET_KEY
from moldau.protocol.as_json import camel_case
from moldau.protocol.scram import MECHANISMS_BY_NUMBER
from moldau.protocol.types import uuid_to_base64
from moldau.text import printable_json

DEFAULT_NAME: Final = "<default>"
HIDDEN: Final = "[hidden]"

Children: TypeAlias = "Mapping[str, Node]"
WILDCARDS: Final = frozenset("*?[")


class Directory:
    """A node with children."""

    def __init__(self, children: Children | Callable[[], Children]) -> None:
        self._children = children

    @property
    def children(self) -> Children:
        """The children by name, in the order they are shown."""
        if callable(self._children):
            self._children = self._children()
        return self._children


class Leaf:
    """A node with a value, which is shown as JSON; as text when it is a string."""

    def __init__(self, value: object) -> None:
        self.value = to_json(value)

    def text(self) -> str:
        if isinstance(self.value, str):
            return self.value
        lines = json.dumps(self.value, indent=2, ensure_ascii=False).split("\n")
        return "\n".join(map(printable_json, lines))


Node: TypeAlias = Directory | Leaf


def metadata_tree(files: MetadataFiles) -> Directory:
    image, identity = files.image, files.identity
    children: dict[str, Node] = {
        "brokers": Directory(lambda: _brokers(image)),
        "clientQuotas": Directory(lambda: _client_quotas(image)),
        "configs": Directory(lambda: _configs(image)),
        "controllers": Directory(lambda: _controllers(image)),
        "acls": Directory(lambda: _leaves(image.acls.entries_by_id)),
        "delegationTokens": Directory(lambda: _leaves(image.delegation_tokens.tokens_by_id)),
        "features": Directory(lambda: _features(image)),
        "local": Directory(lambda: _local(files)),
        "metadataQuorum": Directory(lambda: _quorum(files)),
        "producerIds": Directory({"nextProducerId": Leaf(image.producer_ids.next_producer_id)}),
        "scram": Directory(lambda: _scram(image)),
        "topics": Directory(
            {
                "byId": Directory(lambda: _topics_by_id(image)),
                "byName": Directory(lambda: _topics_by_name(image)),
            }
        ),
    }
    if identity is not None:
        children["clusterId"] = Leaf(identity.cluster_id)
    return Directory(dict(sorted(children.items())))


def to_json(value: object) -> object:
    """A value of the image as JSON, under Kafka's kind of names."""
    if is_dataclass(value):
        return {camel_case(each.name): to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, UUID):
        return uuid_to_base64(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {camel_case(name): to_json(each) for name, each in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return HIDDEN
    return value


def _leaves(values: Mapping[Any, object]) -> Children:
    return {str(to_json(key)): Leaf(each) for key, each in sorted(values.items())}


def _brokers(image: MetadataImage) -> Children:
    return {
        str(broker_id): Directory(
            {
                "fenced": Leaf(registration.fenced),
                "inControlledShutdown": Leaf(registration.in_controlled_shutdown),
                "registration": Leaf(registration),
            }
        )
        for broker_id, registration in sorted(image.cluster.brokers.items())
    }


def _controllers(image: MetadataImage) -> Children:
    return {
        str(controller_id): Directory({"registration": Leaf(registration)})
        for controller_id, registration in sorted(image.cluster.controllers.items())
    }


def _features(image: MetadataImage) -> Children:
    children = dict(_leaves(image.features.finalized_levels))
    if METADATA_VERSION in children:
        release = metadata_release(image.features.metadata_level)
        children[METADATA_VERSION] = Leaf(f"{image.features.metadata_level} ({release})")
    return children


def _topics_by_name(image: MetadataImage) -> Children:
    return {name: _topic(topic) for name, topic in sorted(image.topics.topics_by_name.items())}


def _topics_by_id(image: MetadataImage) -> Children:
    topics = image.topics.topics_by_id.items()
    return dict(sorted((uuid_to_base64(topic_id), _topic(topic)) for topic_id, topic in topics))


def _topic(topic: TopicImage) -> Directory:
    def children() -> Children:
        partitions = {
            str(index): Directory({"data": Leaf(partition)})
            for index, partition in sorted(topic.partitions.items())
        }
        return {**partitions, "id": Leaf(topic.topic_id), "name": Leaf(topic.name)}

    return Directory(children)


def _configs(image: MetadataImage) -> Children:
    types: dict[str, dict[str, Node]] = {}
    for resource, config in sorted(image.configs.configs_by_resource.items()):
        try:
            type_name = ConfigResourceType(resource.resource_type).name
        except ValueError:
            type_name = str(resource.resource_type)
        place = types.setdefault(type_name, {})
        shown = {key: HIDDEN if key == SECRET_KEY else config[key] for key in config}
        place[resource.name or DEFAULT_NAME] = Directory(_leaves(shown))
    return {name: Directory(resources) for name, resources in types.items()}


def _client_quotas(image: MetadataImage) -> Children:
    entities: dict[str, Node] = {}
    for entity, quotas in image.client_quotas.quotas_by_entity.items():
        name = ",".join(f"{kind}={part or DEFAULT_NAME}" for kind, part in entity)
        entities[name] = Directory(_leaves(quotas))
    return dict(sorted(entities.items()))


def _scram(image: MetadataImage) -> Children:
    mechanisms: dict[str, dict[str, Node]] = {}
    for key, credential in sorted(image.scram.credentials.items()):
        name = MECHANISMS_BY_NUMBER.get(key.mechanism, str(key.mechanism))
        mechanisms.setdefault(name, {})[key.user] = Leaf(credential)
    return {name: Directory(users) for name, users in mechanisms.items()}


def _quorum(files: MetadataFiles) -> Children:
    provenance = files.image.provenance
    return {
        "kraftVersion": Leaf(files.voters.kraft_version),
        "leader": Leaf({"leaderId": files.leader_id, "leaderEpoch": files.leader_epoch}),
        "offset": Leaf(provenance.last_contained_offset),
        "voters": Directory({str(voter.voter_id): Leaf(voter) for voter in files.voters.voters}),
    }


def _local(files: MetadataFiles) -> Children:
    from moldau import __version__

    provenance, identity = files.image.provenance, files.identity
    children: dict[str, Node] = {
        "damage": Leaf(files.damage),
        "digest": Leaf(files.image.digest()),
        "directory": Leaf(files.directory),
        "files": Leaf(files.sources),
        "lastContainedEpoch": Leaf(provenance.last_contained_epoch),
        "lastContainedLogTimestampMs": Leaf(provenance.last_contained_log_time_ms),
        "lastContainedOffset": Leaf(provenance.last_contained_offset),
        "version": Leaf(__version__),
    }
    if identity is not None:
        children["nodeId"] = Leaf(identity.node_id)
        children["directoryId"] = Leaf(identity.directory_id)
    return dict(sorted(children.items()))


class ShellError(Exception):
    """A command that cannot be done; one line that says why."""


class Shell:
    """One user's walk through a tree; `say` gets what commands print, some lines at a time."""

    def __init__(self, root: Directory, say: Callable[[str], None]) -> None:
        self._root = root
        self._say = say
        self._where: tuple[str, ...] = ()
        self.has_ended = False

    @property
    def directory(self) -> str:
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
        name = "exit" if words[0] == "quit" else words[0]
        if name not in MANUAL:
            raise ShellError(f"{name}: no such command; there are {', '.join(MANUAL)}")
        command, _, _ = MANUAL[name]
        command(self, words[1:])

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
            if name.startswith(prefix) and name.isprintable()
        ]

    # -- commands --------------------------------------------------------------------------------

    def _cat(self, arguments: list[str]) -> None:
        if not arguments:
            raise ShellError("cat: which path?")
        for path, node in self._all(arguments):
            if isinstance(node, Directory):
                raise ShellError(f"cat: {path} is a directory")
            self._say_lines(node.text())

    def _cd(self, arguments: list[str]) -> None:
        if len(arguments) > 1:
            raise ShellError("cd: one directory only")
        [(path, node), *others] = self._all(arguments or ["/"])
        if others:
            raise ShellError(f"cd: {arguments[0]} matches several")
        if not isinstance(node, Directory):
            raise ShellError(f"cd: {path} is not a directory")
        self._where = _parts(path)

    def _exit(self, arguments: list[str]) -> None:
        self.has_ended = True

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
                self._say_lines(node.text())
                continue
            self._say(path)
            for below, child in _walk(path, node):
                depth = below.count("/") - (0 if path == "/" else path.count("/"))
                self._say("  " * depth + _shown(below.rpartition("/")[2], child))
                if isinstance(child, Leaf):
                    self._say_lines(child.text(), "  " * (depth + 1))

    def _help(self, arguments: list[str]) -> None:
        for _, usage, explanation in MANUAL.values():
            self._say(f"{usage:14}{explanation}")

    def _man(self, arguments: list[str]) -> None:
        if not arguments:
            self._help([])
        for name in arguments:
            if name not in MANUAL:
                raise ShellError(f"man: {name} is no command; there are {', '.join(MANUAL)}")
            _, usage, explanation = MANUAL[name]
            self._say_lines(f"{usage}\n    {explanation}")

    def _say_lines(self, text: str, indent: str = "") -> None:
        for line in text.split("\n"):
            self._say(indent + line)

    # -- paths -----------------------------------------------------------------------------------

    def _one(self, path: str) -> Node:
        return next(iter(self._all([path])))[1]

    def _all(self, paths: list[str]) -> list[tuple[str, Node]]:
        """The nodes that paths with wildcards match, in order. Raises: ShellError: one has none"""
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


MANUAL: Final[Mapping[str, tuple[Callable[[Shell, list[str]], None], str, str]]] = {
    "cat": (Shell._cat, "cat PATH…", "Print the value of each path."),
    "cd": (Shell._cd, "cd [PATH]", "Go to a directory; to the root when none is given."),
    "exit": (Shell._exit, "exit", "Leave the shell; so does the end of the input."),
    "find": (Shell._find, "find [PATH…]", "List every path below, one a line."),
    "help": (Shell._help, "help", "List the commands."),
    "ls": (Shell._ls, "ls [PATH…]", "List directories; a directory's name ends in /."),
    "man": (Shell._man, "man [COMMAND]", "Explain a command."),
    "pwd": (Shell._pwd, "pwd", "Print the current directory."),
    "tree": (Shell._tree, "tree [PATH…]", "Show everything below, with values."),
}


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
    """The path without `..`; the root is its own parent."""
    resolved = list(start)
    for part in parts:
        if part != "..":
            resolved.append(part)
        elif resolved:
            resolved.pop()
    return tuple(resolved)


def _walk(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node, Directory):
        for name, child in node.children.items():
            below = f"{path.rstrip('/')}/{name}"
            yield below, child
            yield from _walk(below, child)


def _shown(name: str, node: Node) -> str:
    return f"{name}/" if isinstance(node, Directory) else name
