"""Configuration of client metrics subscriptions: which keys there are.

Owns: the keys of CLIENT_METRICS resources (KIP-714) and their limits. Must not: apply them.
Invariant: a key that is not among them is refused.
"""

from __future__ import annotations

import re
from typing import Final

from moldau.config import ConfigError

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_SELECTOR: Final = re.compile(
    r"(client_instance_id|client_id|client_software_name"
    r"|client_software_version|client_source_address"
    r"|client_source_port)=.+"
)

_INTERVAL_MS: Final = (100, 3_600_000)


def validate_client_metrics_config(key: str, text: str) -> None:
    """Check one key of a CLIENT_METRICS resource.

    Raises:
        ConfigError: there is no such key, or the value is not one it takes.
    """
    if key == "interval.ms":
        _check_integer(key, text, *_INTERVAL_MS)
    elif key == "match":
        for selector in filter(None, (part.strip() for part in text.split(","))):
            if not _SELECTOR.fullmatch(selector):
                raise ConfigError(key, text, "must be a list of client_…=pattern selectors")
    elif key != "metrics":
        raise ConfigError(key, None, "is not a client metrics configuration")


def _check_integer(key: str, text: str, minimum: int, maximum: int) -> None:
    if not _INTEGER.fullmatch(text.strip()) or not minimum <= int(text) <= maximum:
        raise ConfigError(key, text, f"must be a whole number from {minimum} to {maximum}")
