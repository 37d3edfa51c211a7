"""Finalized feature levels: image and delta.

Owns: what FeatureLevelRecord says. Must not: know what a level means. Invariant: a level is at
least 1; level 0 is the same as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from moldau.metadata.features import METADATA_VERSION, MINIMUM_METADATA_LEVEL
from moldau.metadata.image.overlay import overlay
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class FeaturesImage:
    """The finalized level of each feature, by name."""

    finalized_levels: Mapping[str, int] = field(default_factory=dict)

    @property
    def metadata_level(self) -> int:
        """The finalized `metadata.version`; the oldest one while the log has not said any."""
        return self.finalized_levels.get(METADATA_VERSION, MINIMUM_METADATA_LEVEL)

    def level(self, feature: str) -> int:
        """The finalized level of `feature`, 0 when it is off."""
        return self.finalized_levels.get(feature, 0)

    def write(self) -> Iterator[tuple[Message, int]]:
        """The records that make this image; the metadata level first, since it rules how to read
        on.
        """
        names = sorted(self.finalized_levels, key=lambda name: (name != METADATA_VERSION, name))
        for name in names:
            yield FeatureLevelRecord(name=name, feature_level=self.finalized_levels[name]), 0


class FeaturesDelta:
    """Changes to feature levels; None stands for one that is switched off."""

    __slots__ = ("_image", "changes")

    def __init__(self, image: FeaturesImage) -> None:
        self._image = image
        self.changes: dict[str, int | None] = {}

    def replay_feature_level(self, record: FeatureLevelRecord) -> None:
        """Take over one level."""
        self.changes[record.name] = record.feature_level or None

    def finish_snapshot(self) -> None:
        """Switch off what the snapshot did not mention."""
        for name in self._image.finalized_levels:
            self.changes.setdefault(name, None)

    def apply(self) -> FeaturesImage:
        """The image with the changes made."""
        return FeaturesImage(overlay(self._image.finalized_levels, self.changes))
