"""The users of SCRAM that a controller lets in before it knows what is committed.

Controllers authenticate to one another before any of them can lead, and the users of SCRAM are in
the metadata log, of which nothing counts as committed before one of them leads. Until then a
controller goes by what its own disk holds: the snapshot and the log behind it, or, for a cluster
that has never had a leader, the users that `storage format --add-scram` wrote. Apache Kafka's
controllers have no such users, and do not find each other by SCRAM.

Owns these credentials. Must not change any. Invariant: as soon as this node has replayed the
committed log up to where its own log ended at the start, the metadata alone decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from moldau.config import NodeConfig
from moldau.metadata.image import MetadataImage
from moldau.node.listeners import scram_keys
from moldau.protocol.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from moldau.protocol.schema import Message
from moldau.protocol.scram import HASH_NAMES, MECHANISM_NUMBERS, ScramKeys

NOWHERE: Final = -1


class EarlyUsers:
    """Made with the bootstrap records → `take_log`, before the log is served → `find`."""

    def __init__(self, bootstrap: Iterable[Message] = ()) -> None:
        self._keys: dict[tuple[str, int], ScramKeys] = {}
        self._end_offset = NOWHERE
        self._replay(bootstrap)

    def take_log(self, records: Iterable[Message], end_offset: int) -> None:
        """Go by the snapshot and the log on disk, unless there is nothing in them yet. Blocks.

        Args:
            end_offset: where the log ends.
        """
        bootstrap, self._keys = self._keys, {}
        if not self._replay(records):
            self._keys = bootstrap
        self._end_offset = end_offset

    def find(self, image: MetadataImage, mechanism: str, user: str) -> ScramKeys | None:
        """The keys of a user, None for one that does not exist.

        Args:
            image: what this node has replayed of the committed log.
        """
        replayed = image.provenance.last_contained_offset + 1
        if replayed > 0 and replayed >= self._end_offset:
            self._keys.clear()
            return scram_keys(image, mechanism, user)
        return self._keys.get((user, MECHANISM_NUMBERS[mechanism]))

    def _replay(self, records: Iterable[Message]) -> int:
        """How many records there were."""
        count = 0
        for record in records:
            count += 1
            if isinstance(record, UserScramCredentialRecord):
                self._keys[record.name, record.mechanism] = ScramKeys(
                    bytes(record.salt),
                    bytes(record.stored_key),
                    bytes(record.server_key),
                    record.iterations,
                )
            elif isinstance(record, RemoveUserScramCredentialRecord):
                self._keys.pop((record.name, record.mechanism), None)
        return count


def has_scram(config: NodeConfig) -> bool:
    """Whether users of SCRAM log in to this node's controller."""
    return any(
        each.security_protocol.has_sasl
        and not HASH_NAMES.keys().isdisjoint(
            config.listener_value(each.listener_name, "sasl.enabled.mechanisms")
        )
        for each in config.controller_listeners
    )
