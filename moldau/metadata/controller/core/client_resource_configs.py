"""Configuration of client metrics subscriptions and of groups: which keys there are.

Owns: the keys of CLIENT_METRICS (KIP-714) and GROUP (KIP-848, KIP-932, KIP-1071) resources and
their limits. Must not: apply them. Invariant: a key that is not in the tables is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from moldau.config import ConfigError
from moldau.metadata.image import ConfigResourceType

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_SELECTOR: Final = re.compile(
    r"(client_instance_id|client_id|client_software_name"
    r"|client_software_version|client_source_address"
    r"|client_source_port)=.+"
)

_INTERVAL_MS: Final = (100, 3_600_000)
_GROUP_INTEGERS: Final[Mapping[str, tuple[int, int]]] = {
    "consumer.session.timeout.ms": (1, 2**31 - 1),
    "consumer.heartbeat.interval.ms": (1, 2**31 - 1),
    "share.session.timeout.ms": (1, 2**31 - 1),
    "share.heartbeat.interval.ms": (1, 2**31 - 1),
    "share.record.lock.duration.ms": (1_000, 3_600_000),
    "streams.session.timeout.ms": (1, 2**31 - 1),
    "streams.heartbeat.interval.ms": (1, 2**31 - 1),
    "streams.num.standby.replicas": (0, 2**31 - 1),
}
_GROUP_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "share.auto.offset.reset": ("latest", "earliest", "by_duration:"),
    "share.isolation.level": ("read_committed", "read_uncommitted"),
}


def validate_client_resource_config(resource_type: int, key: str, text: str) -> None:
    """Check one key of a CLIENT_METRICS or GROUP resource.

    Raises:
        ConfigError: there is no such key, or the value is not one it takes.
    """
    if resource_type == ConfigResourceType.CLIENT_METRICS:
        _validate_client_metrics(key, text)
    else:
        _validate_group(key, text)


def _validate_client_metrics(key: str, text: str) -> None:
    if key == "interval.ms":
        _check_integer(key, text, *_INTERVAL_MS)
    elif key == "match":
        for selector in filter(None, (part.strip() for part in text.split(","))):
            if not _SELECTOR.fullmatch(selector):
                raise ConfigError(key, text, "must be a list of client_…=pattern selectors")
    elif key != "metrics":
        raise ConfigError(key, None, "is not a client metrics configuration")


def _validate_group(key: str, text: str) -> None:
    if key in _GROUP_INTEGERS:
        _check_integer(key, text, *_GROUP_INTEGERS[key])
    elif key in _GROUP_CHOICES:
        choices = _GROUP_CHOICES[key]
        exact = [choice for choice in choices if not choice.endswith(":")]
        prefixes = tuple(choice for choice in choices if choice.endswith(":"))
        if text not in exact and not (prefixes and text.startswith(prefixes)):
            raise ConfigError(key, text, f"must be one of {', '.join(choices)}")
    else:
        raise ConfigError(key, None, "is not a group configuration")


def _check_integer(key: str, text: str, minimum: int, maximum: int) -> None:
    if not _INTEGER.fullmatch(text.strip()) or not minimum <= int(text) <= maximum:
        raise ConfigError(key, text, f"must be a whole number from {minimum} to {maximum}")
