"""The feature levels a cluster may run at, and the record versions each metadata level implies.

The levels are those of Apache Kafka 4.3's `version-mapping`; `controller.core.feature_control`
decides at which one a cluster runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.protocol.schema import Message

T = TypeVar("T")

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"

MINIMUM_METADATA_LEVEL: Final = 7
LATEST_METADATA_LEVEL: Final = 30
LATEST_KRAFT_LEVEL: Final = 1

_MIGRATION_LEVEL: Final = 8
SCRAM_LEVEL: Final = 11
"""From this level on SCRAM credentials are records (KIP-900)."""
ISR_SHRINK_KEEPS_LEADER_EPOCH_LEVEL: Final = 12
"""From this level on a smaller ISR alone leaves the leader epoch as it is."""
TRANSACTIONS_LEVEL: Final = 13
"""From this level on Begin/EndTransactionRecord may be written (KIP-868)."""
DELEGATION_TOKEN_LEVEL: Final = 14
"""From this level on delegation tokens are records (KIP-900)."""
CONTROLLER_REGISTRATION_LEVEL: Final = 15
"""From this level on controllers register themselves in the log (KIP-919)."""
DIRECTORY_ASSIGNMENT_LEVEL: Final = 17
"""From this level on partitions name the log directory of each replica (KIP-858)."""
_ELIGIBLE_LEADER_REPLICAS_LEVEL: Final = 23
_CORDONED_DIRECTORIES_LEVEL: Final = 30

METADATA_RELEASES: Final[Mapping[int, str]] = MappingProxyType(
    {
        7: "3.3-IV3",
        8: "3.4-IV0",
        9: "3.5-IV0",
        10: "3.5-IV1",
        11: "3.5-IV2",
        12: "3.6-IV0",
        13: "3.6-IV1",
        14: "3.6-IV2",
        15: "3.7-IV0",
        16: "3.7-IV1",
        17: "3.7-IV2",
        18: "3.7-IV3",
        19: "3.7-IV4",
        20: "3.8-IV0",
        21: "3.9-IV0",
        22: "4.0-IV0",
        23: "4.0-IV1",
        24: "4.0-IV2",
        25: "4.0-IV3",
        26: "4.1-IV0",
        27: "4.1-IV1",
        28: "4.2-IV0",
        29: "4.2-IV1",
        30: "4.3-IV0",
    }
)
"""What people call each metadata level."""


_CONTENT_CHANGED_LEVELS: Final = frozenset({8, 11, 13, 14, 15, 17, 23, 30})
"""Levels that let records say what the level below cannot read."""

FEATURE_REQUIREMENTS: Final[Mapping[tuple[str, int], Mapping[str, int]]] = MappingProxyType(
    {(ELIGIBLE_LEADER_REPLICAS_VERSION, 1): {METADATA_VERSION: _ELIGIBLE_LEADER_REPLICAS_LEVEL}}
)
"""What else must be finalized, at least at which level, before a feature may be at a level."""


def is_lossless_downgrade(current_level: int, target_level: int) -> bool:
    """Whether everything written at `current_level` of metadata.version can be read below."""
    return not any(target_level < level <= current_level for level in _CONTENT_CHANGED_LEVELS)


class FeatureRange(NamedTuple):
    """The levels of one feature that a node understands, and the one a new cluster starts with."""

    minimum_level: int
    maximum_level: int
    default_level: int


SUPPORTED_FEATURES: Final[Mapping[str, FeatureRange]] = MappingProxyType(
    {
        METADATA_VERSION: FeatureRange(
            MINIMUM_METADATA_LEVEL, LATEST_METADATA_LEVEL, LATEST_METADATA_LEVEL
        ),
        KRAFT_VERSION: FeatureRange(0, LATEST_KRAFT_LEVEL, LATEST_KRAFT_LEVEL),
        TRANSACTION_VERSION: FeatureRange(0, 2, 2),
        GROUP_VERSION: FeatureRange(0, 1, 1),
        ELIGIBLE_LEADER_REPLICAS_VERSION: FeatureRange(0, 1, 1),
        SHARE_VERSION: FeatureRange(0, 0, 0),
        STREAMS_VERSION: FeatureRange(0, 0, 0),
    }
)
"""What this release can run at. `kraft.version` is in the quorum's control records."""

_READABLE_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {SHARE_VERSION: 1, STREAMS_VERSION: 1}
)
"""The highest level of features whose protocols are not served at which metadata may be finalized
already: Apache Kafka 4.3 formats that way. A level changes nothing in what is written here.
"""


def advertised_features(finalized_levels: Mapping[str, int]) -> dict[str, FeatureRange]:
    """What a node says it supports: SUPPORTED_FEATURES; in a cluster that has finalized a feature
    that is not served, also that feature's readable levels, or the node could not be part of it.

    Args:
        finalized_levels: those of the metadata that the node has replayed.
    """
    ranges = dict(SUPPORTED_FEATURES)
    for name, highest in _READABLE_LEVELS.items():
        if finalized_levels.get(name, 0) > 0:
            ranges[name] = ranges[name]._replace(maximum_level=highest)
    return ranges


def range_entries(kind: Callable[..., T], ranges: Iterable[tuple[str, Any]]) -> list[T]:
    """Names and ranges of levels as the entries of a registration's message or record."""
    return [
        kind(
            name=name,
            min_supported_version=levels.minimum_level,
            max_supported_version=levels.maximum_level,
        )
        for name, levels in ranges
    ]


def register_broker_record_version(metadata_level: int) -> int:
    if metadata_level >= _CORDONED_DIRECTORIES_LEVEL:
        return 4
    if metadata_level >= DIRECTORY_ASSIGNMENT_LEVEL:
        return 3
    return 2 if metadata_level >= _MIGRATION_LEVEL else 1


def broker_registration_change_record_version(metadata_level: int) -> int:
    if metadata_level >= _CORDONED_DIRECTORIES_LEVEL:
        return 3
    return 2 if metadata_level >= DIRECTORY_ASSIGNMENT_LEVEL else 1


def partition_record_version(metadata_level: int) -> int:
    if metadata_level >= _ELIGIBLE_LEADER_REPLICAS_LEVEL:
        return 2
    return 1 if metadata_level >= DIRECTORY_ASSIGNMENT_LEVEL else 0


def metadata_release(metadata_level: int) -> str:
    """A metadata level as people write it, such as "4.3-IV0"."""
    return METADATA_RELEASES.get(metadata_level, f"level {metadata_level}")


class UnsupportedFeatureLevel(ValueError):
    """A feature level that a new cluster cannot have; one line that says why."""


def initial_feature_levels(
    overrides: Mapping[str, int] | None = None, *, release: str | None = None
) -> dict[str, int]:
    """The levels to format with, by feature; `kraft.version` is among them.

    Args:
        overrides: levels by name, as given with `--feature NAME=LEVEL`.
        release: a metadata version as people write it ("4.3-IV0", "4.3"); None for the latest.

    Raises:
        UnsupportedFeatureLevel: an unknown feature or release, or a level out of range.
    """
    levels = {name: feature.default_level for name, feature in SUPPORTED_FEATURES.items()}
    levels[METADATA_VERSION] = (
        LATEST_METADATA_LEVEL if release is None else metadata_level_of(release)
    )
    for name, level in (overrides or {}).items():
        supported = SUPPORTED_FEATURES.get(name)
        if supported is None:
            known = ", ".join(sorted(SUPPORTED_FEATURES))
            raise UnsupportedFeatureLevel(f"there is no feature {name}: there are {known}")
        if not supported.minimum_level <= level <= supported.maximum_level:
            raise UnsupportedFeatureLevel(
                f"{name}={level} is not supported: "
                f"{supported.minimum_level} to {supported.maximum_level} are"
            )
        levels[name] = level
    return levels


def metadata_level_of(release: str) -> int:
    """The metadata level of a release: exact ("4.2-IV0") or the last of a version ("4.2").

    Raises UnsupportedFeatureLevel: it is not known here.
    """
    version = ".".join(release.split(".")[:2])
    matching = [
        level
        for level, name in METADATA_RELEASES.items()
        if name == release or (name.partition("-")[0] == version and "-" not in release)
    ]
    if not matching:
        first, last = min(METADATA_RELEASES), max(METADATA_RELEASES)
        raise UnsupportedFeatureLevel(
            f"{release} is not a known metadata version: "
            f"{METADATA_RELEASES[first]} to {METADATA_RELEASES[last]} are"
        )
    return max(matching)


def feature_records(levels: Mapping[str, int]) -> list[tuple[Message, int]]:
    """The records that finalize levels: metadata.version first, since it rules how to read on; what
    is off, and the quorum's own kraft.version, has none.
    """
    names = sorted(levels, key=lambda name: (name != METADATA_VERSION, name))
    return [
        (FeatureLevelRecord(name=name, feature_level=levels[name]), 0)
        for name in names
        if name != KRAFT_VERSION and levels[name] > 0
    ]
