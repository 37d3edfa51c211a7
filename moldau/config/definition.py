"""What a configuration key is (a node's: `keys`), and the one error that configuration raises.

Keys are plain tuples, so that the whole table costs a few milliseconds to import. An error carries
no sensitive value: its callers pass the redacted text.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from moldau.config.validators import Validator


class ConfigType(IntEnum):
    """Value types; the numbers are those of DescribeConfigs v3+ (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where an effective value came from; the numbers are those of DescribeConfigs (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Importance(Enum):
    """How much Kafka thinks an operator should care."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Scope(Enum):
    """Where a key may be set. Kafka calls the first three its update modes."""

    STATIC = "read-only"
    BROKER = "per-broker"
    CLUSTER = "cluster-wide"
    TOPIC = "topic"
    CLIENT = "client"


class Status(Enum):
    """How far this node honours the key.

    SERVED: it does what Kafka documents. REFUSED: a value other than the default is an error, since
    accepting it would promise something that does not happen. IGNORED: the node accepts it without
    any effect yet, and warns when it is set to something else than the default.
    """

    SERVED = "served"
    REFUSED = "refused"
    IGNORED = "ignored"


Values: TypeAlias = Mapping[str, Any]
"""Typed values by key: the key's `ConfigType` says of which type each is."""

HIDDEN: Final = "[hidden]"
"""What is shown in place of a sensitive value."""


class ConfigError(ValueError):
    """A key that cannot be used with this value; `str(error)` is a single line.

    Attributes:
        key: the dotted name, or a file name when no key is to blame.
        value: the offending text, redacted when the key is sensitive; None when it is missing.
        allowed: what would be accepted, as a clause such as "must be at least 1".
    """

    __slots__ = ("allowed", "key", "value")

    def __init__(self, key: str, value: str | None, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = " ".join(allowed.split())
        shown = "" if value is None else "=" + _one_line(value)
        super().__init__(f"{key}{shown}: {self.allowed}")


def _one_line(value: str) -> str:
    """Text that cannot break the line nor flood it (200 characters are enough to recognise it)."""
    escaped = value.encode("unicode_escape").decode("ascii") if not value.isprintable() else value
    return escaped if len(escaped) <= 200 else escaped[:197] + "..."


class Required:
    """Marks a key that has no default (the type of `REQUIRED`)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = Required()


class Password:
    """A value that is never shown: `repr` and `str` hide it, only `.value` reveals it."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


class ConfigKey(NamedTuple):
    """One configuration key.

    `default` is a typed value, None where Kafka's default is null, or `REQUIRED`. `note` says why
    a key is refused or ignored, or why a client's default is not Kafka's. `refused_values` names
    what a served key does not accept *yet* although Kafka would (compared with the value, or with
    each element of a list), and `refusal` the reason. `idle_elements` are those of a served list
    that are accepted without effect (`refusal` says why), since Kafka's default has them.
    `synonyms` are the keys whose values apply when this one is not set itself, most specific first.
    `unit` is what a client's number counts, or what its list holds besides texts.
    """

    name: str
    type: ConfigType
    default: object
    validator: Validator | None
    importance: Importance
    scope: Scope
    documentation: str
    status: Status = Status.SERVED
    note: str = ""
    synonyms: tuple[str, ...] = ()
    refused_values: tuple[str, ...] = ()
    refusal: str = ""
    idle_elements: tuple[str, ...] = ()
    internal: bool = False
    unit: str = ""

    @property
    def sensitive(self) -> bool:
        """Whether values must be redacted wherever they are shown."""
        return self.type is ConfigType.PASSWORD or self.type is ConfigType.UNKNOWN

    @property
    def dynamic(self) -> bool:
        """Whether a running broker accepts a new value through AlterConfigs."""
        return self.scope is Scope.BROKER or self.scope is Scope.CLUSTER

    @property
    def default_value(self) -> object:
        """The default, with None for a key that has to be set."""
        return None if self.default is REQUIRED else self.default
