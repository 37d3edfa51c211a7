"""The users of SCRAM that a controller lets in before it knows what is committed.

Controllers authenticate to one another before any of them can lead, and the users of SCRAM are in
the metadata log, of which nothing counts as committed before one of them leads. Until then a
controller goes by what its own disk holds: the snapshot and the log behind it, or, for a cluster
that has never had a leader, the users that `storage format --add-scram` wrote. Apache Kafka's
controllers have no such users, and do not find each other by SCRAM.

Owns these credentials, and the secret of a cluster behind its answers about unknown users. Must not
change any. Invariant: as soon as this node has replayed the
committed log up to where its own log ended at the start, the metadata alone decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from moldau.config import NodeConfig
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.metadata.scram_secret import is_scram_secret
from moldau.protocol.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from moldau.protocol.schema import Message
from moldau.protocol.scram import HASH_NAMES

NOWHERE: Final = -1
_REPLAYED: Final = (UserScramCredentialRecord, RemoveUserScramCredentialRecord)


class EarlyUsers:
    """Made with the bootstrap records → `take_log`, before the log is served → `image`."""

    def __init__(self, bootstrap: Iterable[Message] = ()) -> None:
        self._image = MetadataImage.EMPTY
        self._end_offset = NOWHERE
        self._replay(bootstrap)

    def take_log(self, records: Iterable[Message], end_offset: int) -> None:
        """Go by the snapshot and the log on disk, unless there is nothing in them yet. Blocks.

        Args:
            end_offset: where the log ends.
        """
        self._replay(records)
        self._end_offset = end_offset

    def image(self, committed: MetadataImage) -> MetadataImage:
        """The image whose users count now, and whose secret.

        Args:
            committed: what this node has replayed of the committed log.
        """
        replayed = committed.provenance.last_contained_offset + 1
        if replayed > 0 and replayed >= self._end_offset:
            self._image = MetadataImage.EMPTY
            return committed
        return self._image

    def _replay(self, records: Iterable[Message]) -> None:
        """Take over the users of these records; without any record keep what there is."""
        delta, count = MetadataDelta(MetadataImage.EMPTY), 0
        for record in records:
            count += 1
            if isinstance(record, _REPLAYED) or is_scram_secret(record):
                delta.replay(record)
        if count:
            self._image = delta.apply(Provenance())


def has_scram(config: NodeConfig) -> bool:
    """Whether users of SCRAM log in to this node's controller."""
    return any(
        each.security_protocol.has_sasl
        and not HASH_NAMES.keys().isdisjoint(
            config.listener_value(each.listener_name, "sasl.enabled.mechanisms")
        )
        for each in config.controller_listeners
    )
