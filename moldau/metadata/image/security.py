"""Access rules and credentials: images and deltas of ACLs, SCRAM credentials and delegation tokens.

Owns: what their records say, so that logs and snapshots with them can be read and written again.
Must not: authorize or authenticate. Invariant: secrets never appear in a `repr`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from moldau.metadata.image.overlay import MappingDelta
from moldau.metadata.image.values import InvalidMetadataRecord
from moldau.protocol import metadata_records as kinds
from moldau.protocol.schema import Message


class AccessControlEntry(NamedTuple):
    """One rule; the numbers are those of the wire (CreateAcls)."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


EntryChanges: TypeAlias = Mapping[UUID, AccessControlEntry | None]
"""Entries by their ids; None for one that is gone."""
_entry_values: Final = attrgetter(*AccessControlEntry._fields)


@dataclass(frozen=True, slots=True)
class AclsImage:
    """Rules by their id."""

    entries_by_id: Mapping[UUID, AccessControlEntry] = field(default_factory=dict)

    def write(self) -> Iterator[tuple[Message, int]]:
        for entry_id in sorted(self.entries_by_id):
            entry = self.entries_by_id[entry_id]
            yield kinds.AccessControlEntryRecord(id=entry_id, **entry._asdict()), 0


class AclsDelta(MappingDelta[UUID, AccessControlEntry, AclsImage]):
    """Changed rules."""

    def replay_access_control_entry(self, record: kinds.AccessControlEntryRecord) -> None:
        self.changes[record.id] = AccessControlEntry._make(_entry_values(record))

    def replay_remove_access_control_entry(
        self, record: kinds.RemoveAccessControlEntryRecord
    ) -> None:
        if self.get(record.id) is None:
            raise InvalidMetadataRecord(f"no such rule: {record}")
        self.changes[record.id] = None


class ScramKey(NamedTuple):
    """A user and the mechanism's number (1 SCRAM-SHA-256, 2 SCRAM-SHA-512)."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a broker needs to check a password (KIP-84, KIP-900)."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class CredentialShape(NamedTuple):
    """What a server shows of a credential to a client that has proved nothing yet, but the salt.

    Attributes:
        salt_bytes: the salt's size; `TEXT_SALT` for one in Apache Kafka's form.
    """

    mechanism: int
    salt_bytes: int
    iterations: int


TEXT_SALT: Final = 0
"""Stands for the salts that Apache Kafka's tools make: 130 random bits as a number in base 36."""
_TEXT_SALT: Final = re.compile(rb"[0-9a-z]{20,26}")


def _shape_of(key: ScramKey, credential: ScramCredential) -> CredentialShape:
    salt = credential.salt
    size = TEXT_SALT if _TEXT_SALT.fullmatch(salt) else len(salt)
    return CredentialShape(key.mechanism, size, credential.iterations)


@dataclass(frozen=True, slots=True)
class ScramImage:
    """Credentials by user and mechanism, and how many there are of each shape."""

    credentials: Mapping[ScramKey, ScramCredential] = field(default_factory=dict)
    shapes: Mapping[CredentialShape, int] = field(default_factory=dict)

    def write(self) -> Iterator[tuple[Message, int]]:
        for key in sorted(self.credentials):
            yield (
                kinds.UserScramCredentialRecord(
                    name=key.user, mechanism=key.mechanism, **asdict(self.credentials[key])
                ),
                0,
            )


class ScramDelta(MappingDelta[ScramKey, ScramCredential, ScramImage]):
    """Changed credentials."""

    def __init__(self, image: ScramImage) -> None:
        super().__init__(image.credentials, ScramImage)
        self._shapes = image.shapes

    def apply(self) -> ScramImage:
        shapes = Counter(self._shapes)
        for key, credential in self.changes.items():
            before = self._base.get(key)
            if before is not None:
                shapes[_shape_of(key, before)] -= 1
            if credential is not None:
                shapes[_shape_of(key, credential)] += 1
        return replace(super().apply(), shapes=+shapes)

    def replay_user_scram_credential(self, record: kinds.UserScramCredentialRecord) -> None:
        self.changes[ScramKey(record.name, record.mechanism)] = ScramCredential(
            bytes(record.salt),
            bytes(record.stored_key),
            bytes(record.server_key),
            record.iterations,
        )

    def replay_remove_user_scram_credential(
        self, record: kinds.RemoveUserScramCredentialRecord
    ) -> None:
        self.changes[ScramKey(record.name, record.mechanism)] = None


class DelegationToken(NamedTuple):
    """One token (KIP-48); times in milliseconds since 1970."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int

    def record(self, token_id: str) -> kinds.DelegationTokenRecord:
        """The record that makes it."""
        values = {**self._asdict(), "renewers": list(self.renewers)}
        return kinds.DelegationTokenRecord(token_id=token_id, **values)


_token_values: Final = attrgetter(*DelegationToken._fields)


@dataclass(frozen=True, slots=True)
class DelegationTokensImage:
    """Tokens by token id."""

    tokens_by_id: Mapping[str, DelegationToken] = field(default_factory=dict)

    def write(self) -> Iterator[tuple[Message, int]]:
        for token_id in sorted(self.tokens_by_id):
            yield self.tokens_by_id[token_id].record(token_id), 0


class DelegationTokensDelta(MappingDelta[str, DelegationToken, DelegationTokensImage]):
    """Changed tokens."""

    def replay_delegation_token(self, record: kinds.DelegationTokenRecord) -> None:
        token = DelegationToken._make(_token_values(record))
        self.changes[record.token_id] = token._replace(renewers=tuple(record.renewers))

    def replay_remove_delegation_token(self, record: kinds.RemoveDelegationTokenRecord) -> None:
        self.changes[record.token_id] = None
