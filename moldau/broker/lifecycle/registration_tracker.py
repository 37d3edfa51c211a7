"""Sees in the metadata when this broker's registration lacks what has become known meanwhile.

Owns: the one reason there is for that: a cluster whose `metadata.version` did not know log
directories when this broker registered, and does now (KIP-858). Must not: register. Invariant: it
asks for a new registration only while the image holds one of this broker without directories.
"""

from __future__ import annotations

from collections.abc import Callable

from moldau.metadata.features import METADATA_VERSION, supports_directory_assignment
from moldau.metadata.image import MetadataDelta, MetadataImage


class RegistrationTracker:
    """A metadata publisher.

    Args:
        refresh: told to send the registration again, under the same incarnation id.
    """

    def __init__(self, broker_id: int, refresh: Callable[[], None]) -> None:
        self._broker_id = broker_id
        self._refresh = refresh

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Look at the new image."""
        features = image.features
        if METADATA_VERSION not in features.finalized_levels:
            return
        registration = image.cluster.brokers.get(self._broker_id)
        if (
            registration is not None
            and not registration.directories
            and supports_directory_assignment(features.metadata_level)
        ):
            self._refresh()
