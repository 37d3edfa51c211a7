"""The file of `moldau topics diff` and `apply`: how topics, brokers, ACLs and quotas shall be.

    topics:
      orders: {partitions: 6, replication-factor: 3, configs: {retention.ms: 86400000}}
    brokers:
      default: {log.retention.ms: 604800000}
    acls:
      User:alice:
        - {allow: [Read, Describe], topic: orders}
    quotas:
      - {user: alice, producer_byte_rate: 1048576}

Owns the form. Must not ask a cluster. Invariant: every problem is found, each with its line, before
anything is done.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau.cli.acls import kind_named, word
from moldau.cli.options import read_small_file
from moldau.cli.output import fail, warn
from moldau.client.admin.security import AclBinding, QuotaEntity
from moldau.protocol.access_control import (
    CLUSTER_RESOURCE_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.types import is_legal_topic_name

if TYPE_CHECKING:
    from moldau.spark_connector.pipelines.yaml_reader import Reading, Section

SECTIONS: Final = ("topics", "brokers", "acls", "quotas")
MAX_NODES: Final = 200_000
DEFAULT: Final = "default"
RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "delegation-token": ResourceType.DELEGATION_TOKEN,
    "user": ResourceType.USER,
    "cluster": ResourceType.CLUSTER,
}
ENTITY_TYPES: Final = ("user", "client-id", "ip")
QUOTA_KEYS: Final = (
    *("producer_byte_rate", "consumer_byte_rate", "request_percentage"),
    *("controller_mutation_rate", "connection_creation_rate"),
)


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic of the file; None for what it leaves to the cluster."""

    section: Section
    partition_count: int | None
    replication_factor: int | None
    configs: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the cluster shall have. For what is named here, it is all that there shall be: a topic's
    own configuration, the ACLs of a principal, the quotas of an entity. But of brokers it is only
    the keys that are named, None for those not set: nodes set some themselves.
    """

    reading: Reading
    topics: dict[str, WantedTopic] = field(default_factory=dict)
    brokers: dict[str, dict[str, str | None]] = field(default_factory=dict)
    acls: dict[str, set[AclBinding]] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)


def read_wanted(path: Path) -> Wanted:
    """What a file says; exits with status 2 for one that cannot be used, after a line for each of
    its problems.
    """
    data = read_small_file(path)
    try:
        from moldau.spark_connector.errors import PipelineFileError
        from moldau.spark_connector.pipelines.yaml_reader import Reading, read_documents
    except ModuleNotFoundError as error:
        fail(f"reading {path} needs {error.name}: pip install 'moldau[yaml]'", status=2)
    reading = Reading(str(path), os.environ, what="cluster file", max_nodes=MAX_NODES)
    wanted = Wanted(reading)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        fail(f"{path}: no UTF-8: {error}", status=2)
    try:
        for document in read_documents(text, reading):
            _Reader(wanted, document).read()
        reading.refuse_problems()
    except PipelineFileError as error:
        for problem in error.problems:
            warn(problem)
        raise SystemExit(2) from None
    return wanted


class _Reader:
    """Takes one document of a file into `wanted`."""

    def __init__(self, wanted: Wanted, document: Section) -> None:
        self._wanted = wanted
        self._document = document

    def read(self) -> None:
        document = self._document
        for name, section in document.sections("topics").items():
            self._topic(name, section)
        for broker, section in document.sections("brokers").items():
            if broker != DEFAULT and not (broker.isascii() and broker.isdigit()):
                section.reading.note(section.line, section.path, f"a broker's id, or {DEFAULT}")
            self._once(broker, self._wanted.brokers, section)
            self._wanted.brokers[broker] = {
                key: ",".join(section.words(key)) if section.has(key) else None
                for key in section.names()
            }
        acls = document.section("acls", required=False)
        for principal in () if acls is None else acls.names():
            assert acls is not None, "it has names"
            self._acls(principal, acls)
        for section in document.entries("quotas"):
            self._quotas(section)
        document.finish()

    def _once(self, name: object, taken: Iterable[object], section: Section) -> None:
        if name in taken:
            section.reading.note(section.line, section.path, "an earlier part of the file has it")

    def _topic(self, name: str, section: Section) -> None:
        if not is_legal_topic_name(name):
            section.reading.note(section.line, section.path, "a topic cannot be named so")
        self._once(name, self._wanted.topics, section)
        configs = section.section("configs", required=False)
        self._wanted.topics[name] = WantedTopic(
            section,
            section.whole_number("partitions", None),
            section.whole_number("replication-factor", None, highest=2**15 - 1),
            None if configs is None else _configs(configs),
        )
        section.finish()

    def _acls(self, principal: str, acls: Section) -> None:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            acls.complain(principal, "a principal is like User:alice")
        if principal in self._wanted.acls:
            acls.complain(principal, "an earlier part of the file has it")
        if not acls.has(principal):
            acls.complain(principal, "has no value; [] is for a principal that has no ACLs")
        bindings = self._wanted.acls.setdefault(principal, set())
        for section in acls.entries(principal):
            bindings.update(_bindings(principal, section))
            section.finish()

    def _quotas(self, section: Section) -> None:
        names = {kind: section.optional_text(kind) for kind in ENTITY_TYPES}
        entity = tuple((kind, name or None) for kind, name in names.items() if name is not None)
        if not entity:
            section.reading.note(section.line, section.path, f"whose? {', '.join(ENTITY_TYPES)}")
        self._once(entity, self._wanted.quotas, section)
        values: dict[str, float] = {}
        for key in QUOTA_KEYS:
            if section.has(key):
                values[key] = section.made(key, _rate, 0.0)
            else:
                section.leave(key)
        self._wanted.quotas[entity] = values
        section.finish()


def _configs(section: Section) -> dict[str, str]:
    """Values by key, lists as Kafka writes them."""
    found = {}
    for key in section.names():
        if section.has(key):
            found[key] = ",".join(section.words(key))
        else:
            section.complain(key, "has no value; for the default, leave the key out")
    return found


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ValueError(f"{text!r} is no number greater than 0")
    return rate


def _bindings(principal: str, section: Section) -> list[AclBinding]:
    """Those of one entry, which is about one kind of resource."""
    permissions = {"allow": PermissionType.ALLOW, "deny": PermissionType.DENY}
    permission = _only_one(section, tuple(permissions))
    resource = _only_one(section, tuple(RESOURCES))
    patterns = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}
    pattern = section.choice("pattern", tuple(patterns), "literal")
    host = section.text("host", WILDCARD)
    if permission is None or resource is None:
        return []
    kind = RESOURCES[resource]
    names: tuple[str, ...] = section.words(resource)
    if kind is ResourceType.CLUSTER:
        if names != ("true",):
            section.complain(resource, "is true, or left out: there is one cluster")
        names = (CLUSTER_RESOURCE_NAME,)
    operations = []
    possible = (Operation.ALL, *SUPPORTED_OPERATIONS[kind])
    for text in section.words(permission):
        if (operation := kind_named(text, possible)) is not None:
            operations.append(operation)
        else:
            section.complain(
                permission, f"{text!r} is none of {', '.join(map(word, possible))} ({resource})"
            )
    return [
        AclBinding(
            *(kind, name, principal, operation, permissions[permission], host),
            patterns.get(pattern, PatternType.LITERAL),
        )
        for name in names
        for operation in operations
    ]


def _only_one(section: Section, keys: tuple[str, ...]) -> str | None:
    """The one of these keys that the section has."""
    section.leave(*keys)
    given = [key for key in keys if section.has(key)]
    if len(given) != 1:
        text = f"one of {', '.join(keys)} is needed" + (", and no more" if given else "")
        section.reading.note(section.line, section.path, text)
        return None
    return given[0]
