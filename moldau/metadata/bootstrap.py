"""The feature levels a new cluster starts with.

Owns: the defaults of a release and the checks on levels somebody asks for. Must not: write files.
Invariant: the levels name `metadata.version`, and all of them are supported here.
"""

from __future__ import annotations

from collections.abc import Mapping

from moldau.metadata.features import (
    KRAFT_VERSION,
    LATEST_METADATA_LEVEL,
    METADATA_RELEASES,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
)
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.protocol.schema import Message


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

    Raises:
        UnsupportedFeatureLevel: it is not known here.
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
    """The records of a `bootstrap.checkpoint`: metadata.version first; what is off has none."""
    names = sorted(levels, key=lambda name: (name != METADATA_VERSION, name))
    return [
        (FeatureLevelRecord(name=name, feature_level=levels[name]), 0)
        for name in names
        if name != KRAFT_VERSION and levels[name] > 0
    ]
