"""Which versions of which API the brokers of some Apache Kafka releases advertise.

Owns the tables. Must not know what the fake broker can do: that is intersected where it answers
ApiVersions. Source: the releases' own protocol guides and ApiVersions answers. Invariant: a table
is what the release says to a client on a broker's listener, APIs between brokers left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from moldau.protocol import ApiKey, registry

Versions = Mapping[ApiKey, tuple[int, int]]


def _upto(highest: Mapping[int, int], lowest: Mapping[int, int] | None = None) -> Versions:
    lowest = lowest or {}
    return MappingProxyType(
        {ApiKey(key): (lowest.get(key, 0), version) for key, version in highest.items()}
    )


# fmt: off
KAFKA_2_1: Final = _upto({
    0: 7, 1: 10, 2: 4, 3: 7, 8: 6, 9: 5, 10: 2, 11: 3, 12: 2, 13: 2, 14: 2, 15: 2, 16: 2, 17: 1,
    18: 2, 19: 3, 20: 3, 21: 1, 22: 1, 23: 2, 24: 1, 25: 1, 26: 1, 28: 2, 29: 1, 30: 1, 31: 1,
    32: 2, 33: 1, 34: 1, 35: 1, 36: 0, 37: 1, 38: 1, 39: 1, 40: 1, 41: 1, 42: 1,
})
"""No static membership, no member id before the join, no incremental configs, no KIP-511."""

KAFKA_2_8: Final = _upto({
    0: 9, 1: 12, 2: 6, 3: 11, 8: 8, 9: 7, 10: 3, 11: 7, 12: 4, 13: 4, 14: 5, 15: 5, 16: 4, 17: 1,
    18: 3, 19: 7, 20: 6, 21: 2, 22: 4, 23: 4, 24: 3, 25: 3, 26: 3, 28: 3, 29: 2, 30: 2, 31: 2,
    32: 4, 33: 2, 34: 2, 35: 2, 36: 2, 37: 3, 38: 2, 39: 2, 40: 2, 41: 2, 42: 2, 43: 2, 44: 1,
    45: 0, 46: 0, 47: 0, 48: 1, 49: 1, 50: 0, 51: 0, 57: 0, 60: 0, 61: 0,
})
"""Topics have ids, but Fetch still names them."""

KAFKA_3_5: Final = _upto({
    0: 9, 1: 15, 2: 8, 3: 12, 8: 8, 9: 8, 10: 4, 11: 9, 12: 4, 13: 5, 14: 5, 15: 5, 16: 4, 17: 1,
    18: 3, 19: 7, 20: 6, 21: 2, 22: 4, 23: 4, 24: 3, 25: 3, 26: 3, 28: 3, 29: 3, 30: 3, 31: 3,
    32: 4, 33: 2, 34: 2, 35: 4, 36: 2, 37: 3, 38: 3, 39: 2, 40: 2, 41: 3, 42: 2, 43: 2, 44: 1,
    45: 0, 46: 0, 47: 0, 48: 1, 49: 1, 50: 0, 51: 0, 57: 1, 60: 0, 61: 0, 65: 0, 66: 0,
})
"""Fetch names topics by id, coordinators are asked for in batches."""

KAFKA_4_3: Final = _upto({
    0: 13, 1: 18, 2: 11, 3: 13, 8: 10, 9: 10, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5,
    17: 1, 18: 4, 19: 7, 20: 6, 21: 2, 22: 5, 23: 4, 24: 5, 25: 4, 26: 5, 28: 5, 29: 3, 30: 3,
    31: 3, 32: 4, 33: 2, 34: 2, 35: 5, 36: 2, 37: 3, 38: 3, 39: 2, 40: 2, 41: 3, 42: 2, 43: 2,
    44: 1, 45: 1, 46: 0, 47: 0, 48: 1, 49: 1, 50: 0, 51: 0, 55: 2, 57: 2, 60: 2, 61: 0, 64: 0,
    65: 0, 66: 2, 68: 1, 69: 1, 74: 1, 75: 0, 80: 1, 81: 0,
}, {
    1: 4, 2: 1, 8: 2, 9: 1, 19: 2, 20: 1, 23: 2, 29: 1, 30: 1, 31: 1, 32: 1, 34: 1, 35: 1,
    38: 1, 39: 1, 40: 1, 41: 1,
})
"""Both group protocols, transactions of version 2."""
# fmt: on

LATEST: Final[Versions] = MappingProxyType(
    {
        key: (registry.request_class(key).MIN_VERSION, registry.request_class(key).MAX_VERSION)
        for key in registry.api_keys()
    }
)
"""Everything our own messages can say, versions that are not stable yet included (KIP-939)."""

RELEASES: Final[Mapping[str, Versions]] = MappingProxyType(
    {"2.1": KAFKA_2_1, "2.8": KAFKA_2_8, "3.5": KAFKA_3_5, "4.3": KAFKA_4_3}
)


def limited(versions: Versions, **ranges: tuple[int, int] | None) -> Versions:
    """`versions` with some APIs' ranges replaced, by their lower-case names; None takes one out."""
    changed = dict(versions)
    for name, served in ranges.items():
        key = ApiKey[name.upper()]
        if served is None:
            changed.pop(key, None)
        else:
            changed[key] = served
    return MappingProxyType(changed)
