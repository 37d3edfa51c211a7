"""What committed records say of access control, SCRAM credentials and client quotas, kept by plain
dictionaries that share no code with images and deltas.

Owns: the state after each batch that changed it, and what administrators have asked for. Must not:
be asked by production code. Invariants: every image has at its offset what the records up to there
say; a record exists only if a request for it was sent, and as often at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from moldau.metadata.image import MetadataImage
from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol import metadata_records as kinds
from moldau.protocol.messages.p31_delete_acls import DeleteAclsFilter
from moldau.protocol.schema import Message
from tests.kit.seeds import Violation

Entity: TypeAlias = frozenset[tuple[str, str | None]]
"""Pairs of type and name; the name None is the type's default."""
Condition: TypeAlias = "Callable[[SecurityState], bool]"

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4


class SecurityState(NamedTuple):
    """What is in force after a batch.

    Attributes:
        entries: access control entries by id.
        credentials: salt, stored key, server key and iterations by user and mechanism.
        quotas: values by entity and key.
    """

    entries: dict[UUID, tuple[object, ...]]
    credentials: dict[tuple[str, int], tuple[bytes, bytes, bytes, int]]
    quotas: dict[tuple[Entity, str], float]

    @classmethod
    def of(cls, image: MetadataImage) -> SecurityState:
        """The same of an image."""
        return cls(
            {each: tuple(entry) for each, entry in image.acls.entries_by_id.items()},
            {
                (key.user, key.mechanism): (
                    credential.salt,
                    credential.stored_key,
                    credential.server_key,
                    credential.iterations,
                )
                for key, credential in image.scram.credentials.items()
            },
            {
                (frozenset(entity), key): value
                for entity, values in image.client_quotas.quotas_by_entity.items()
                for key, value in values.items()
            },
        )

    def copy(self) -> SecurityState:
        return SecurityState(dict(self.entries), dict(self.credentials), dict(self.quotas))


class SecurityLedger:
    """See the module. Committed records come by `replay`, what administrators do by the rest."""

    def __init__(self) -> None:
        self.states = [SecurityState({}, {}, {})]
        self.filters: list[DeleteAclsFilter] = []
        self._allowances: Counter[Hashable] = Counter()

    @property
    def now(self) -> SecurityState:
        return self.states[-1]

    # -- what administrators ask for and hear ----------------------------------------------------

    def asks(self, changes: Sequence[Hashable], filters: Sequence[DeleteAclsFilter] = ()) -> None:
        """A request is on its way once more: each of its changes may be committed once more."""
        self._allowances.update(changes)
        self.filters += filters

    def mark(self) -> int:
        """Stands for this moment."""
        return len(self.states) - 1

    def acknowledged(self, since: int, earliest: int, what: str, condition: Condition) -> bool:
        """An administrator's answer says something that must have been so at some moment between
        `since`, when it asked, and now; if it changed nothing, between `earliest` and now: a
        controller that is deposed and has not heard of it answers by what it knows. Returns whether
        this one may have done so.

        Raises:
            Violation: it was never so.
        """
        if any(condition(state) for state in self.states[since:]):
            return False
        if any(condition(state) for state in self.states[earliest:since]):
            return True
        raise Violation("acknowledged-lost", f"{what} was never so")

    # -- committed records -----------------------------------------------------------------------

    def replay(self, records: Sequence[Message], image: MetadataImage) -> None:
        """A batch is committed, and `image` is the one after it."""
        state = self.now.copy()
        touched = [record for record in records if self._replay(state, record)]
        if not touched:
            return
        self.states.append(state)
        found = SecurityState.of(image)
        if found != state:
            raise Violation("security-differs", f"the image has {found}, the records say {state}")

    def _replay(self, state: SecurityState, record: Message) -> bool:
        if isinstance(record, kinds.AccessControlEntryRecord):
            entry = tuple(getattr(record, name) for name in AccessControlEntry._fields)
            self._spend(("entry", entry))
            if entry in state.entries.values():
                raise Violation("entry-twice", str(entry))
            state.entries[record.id] = entry
        elif isinstance(record, kinds.RemoveAccessControlEntryRecord):
            gone = state.entries.pop(record.id, None)
            if gone is None or not any(does_match(each, gone) for each in self.filters):
                raise Violation("removed-unasked", f"entry {record.id}: {gone}")
        elif isinstance(record, kinds.UserScramCredentialRecord):
            salt = bytes(record.salt)
            self._spend(("credential", record.name, record.mechanism, salt))
            state.credentials[record.name, record.mechanism] = (
                salt,
                bytes(record.stored_key),
                bytes(record.server_key),
                record.iterations,
            )
        elif isinstance(record, kinds.RemoveUserScramCredentialRecord):
            self._spend(("no credential", record.name, record.mechanism))
            if state.credentials.pop((record.name, record.mechanism), None) is None:
                raise Violation("removed-twice", f"credential of {record.name}")
        elif isinstance(record, kinds.ClientQuotaRecord):
            self._replay_quota(state, record)
        else:
            return False
        return True

    def _replay_quota(self, state: SecurityState, record: kinds.ClientQuotaRecord) -> None:
        entity = frozenset((part.entity_type, part.entity_name) for part in record.entity)
        value = None if record.remove else record.value
        self._spend(("quota", entity, record.key, value))
        if value is None:
            state.quotas.pop((entity, record.key), None)
        else:
            state.quotas[entity, record.key] = value

    def _spend(self, change: Hashable) -> None:
        if self._allowances[change] <= 0:
            raise Violation("changed-unasked", f"{change} is committed more often than asked for")
        self._allowances[change] -= 1


def does_match(wanted: DeleteAclsFilter, entry: tuple[object, ...]) -> bool:
    """Whether a filter of DeleteAcls means an entry (KIP-290)."""
    kind, name, pattern, principal, host, operation, permission = entry
    if wanted.principal_filter not in (None, principal) or wanted.host_filter not in (None, host):
        return False
    for number, value in (
        (wanted.resource_type_filter, kind),
        (wanted.operation, operation),
        (wanted.permission_type, permission),
    ):
        if number not in (ANY, value):
            return False
    wanted_name = wanted.resource_name_filter
    if wanted.pattern_type_filter == MATCH and wanted_name is not None:
        if pattern == PREFIXED:
            return wanted_name.startswith(str(name))
        return name in (wanted_name, "*")
    return wanted.pattern_type_filter in (ANY, MATCH, pattern) and wanted_name in (None, name)
