"""Bugs of access control, SCRAM credentials and quotas, injected one at a time.

Owns: what each replaces. Must not: be active unless asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.controller.apis import DECIDERS
from moldau.controller.core import scram_control
from moldau.metadata.image.configs import ClientQuotasImage
from moldau.metadata.image.overlay import MappingDelta
from moldau.metadata.image.security import ScramCredential, ScramDelta, ScramImage, ScramKey
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.metadata_records import ClientQuotaRecord
from moldau.server import standard_authorizer
from moldau.server.standard_authorizer import StandardAuthorizer
from tests.kit.injected_bugs import InjectedBug, Patch


def stale_acl_cache(patch: Patch) -> None:
    """The authorizer goes on with entries that a delta takes away."""
    original = StandardAuthorizer.change

    def change(self: Any, entries: Any) -> None:
        original(self, {each: entry for each, entry in entries.items() if entry is not None})

    patch.setattr(StandardAuthorizer, "change", change)


def deny_after_allow(patch: Patch) -> None:
    """The first entry that allows decides, whatever denies behind it."""

    def authorize(
        self: Any, principal: str, host: str, operation: Any, kind: Any, name: str
    ) -> Any:
        bit = 1 << operation
        for patterns in self._of(principal, host, kind):
            for grant in patterns.matching(name):
                if grant.allowed & bit:
                    return True
                if grant.denied & bit:
                    return False
        return principal in self.super_users or (
            self.allows_unmentioned and self._is_unmentioned(kind, name)
        )

    patch.setattr(StandardAuthorizer, "authorize", authorize)


def prefix_is_literal(patch: Patch) -> None:
    """A prefix stands for the resource of just that name."""

    def of_prefixes(self: Any, name: str) -> list[Any]:
        return [self.prefixes[name]] if name in self.prefixes else []

    patch.setattr(standard_authorizer._Patterns, "of_prefixes", of_prefixes)


def quotas_left_out_of_snapshots(patch: Patch) -> None:
    """Snapshots are written without client quotas."""
    patch.setattr(ClientQuotasImage, "write", lambda self: iter(()))


def quotas_lost_on_reload(patch: Patch) -> None:
    """A broker that loads a snapshot passes over the client quotas in it."""
    original = MetadataLoader.handle_snapshot

    def handle_snapshot(self: Any, records: Sequence[Any], provenance: Any) -> None:
        kept = [each for each in records if not isinstance(each, ClientQuotaRecord)]
        original(self, kept, provenance)

    patch.setattr(MetadataLoader, "handle_snapshot", handle_snapshot)


def deleted_credential_survives_snapshot(patch: Patch) -> None:
    """A node that loads a snapshot keeps the credentials that are not in it any more."""

    def finish_snapshot(self: Any) -> None:
        if not isinstance(self, ScramDelta):
            original(self)

    original = MappingDelta.finish_snapshot
    patch.setattr(MappingDelta, "finish_snapshot", finish_snapshot)


def deleted_credential_in_snapshot(patch: Patch) -> None:
    """Snapshots go on with credentials that were deleted."""
    gone: dict[ScramKey, ScramCredential] = {}
    apply, write = ScramDelta.apply, ScramImage.write

    def remembered(self: Any) -> Any:
        for key, credential in self.changes.items():
            if credential is None and key in self._base:
                gone[key] = self._base[key]
        return apply(self)

    def with_the_deleted(self: Any) -> Any:
        yield from write(self)
        yield from write(ScramImage({k: v for k, v in gone.items() if k not in self.credentials}))

    patch.setattr(ScramDelta, "apply", remembered)
    patch.setattr(ScramImage, "write", with_the_deleted)


def entry_is_only_promised(patch: Patch) -> None:
    """The first new entry of a request is answered for, and makes no record."""
    original: Any = DECIDERS[ApiKey.CREATE_ACLS]

    def create(*asked: Any) -> Any:
        result = yield from original(*asked)
        del result.records[:1]
        return result

    patch.setitem(DECIDERS, ApiKey.CREATE_ACLS, create)


def credential_is_not_removed(patch: Patch) -> None:
    """A credential is deleted by an answer alone: its record stays as it is."""
    original = scram_control._record_of

    def record_of(state: Any, wanted: Any) -> Any:
        record = original(state, wanted)
        if isinstance(wanted, scram_control.p51.ScramCredentialDeletion):
            key = scram_control.ScramKey(wanted.name, wanted.mechanism)
            found = state.image.scram.credentials[key]
            return scram_control.UserScramCredentialRecord(
                name=wanted.name,
                mechanism=wanted.mechanism,
                salt=found.salt,
                stored_key=found.stored_key,
                server_key=found.server_key,
                iterations=found.iterations,
            )
        return record

    patch.setattr(scram_control, "_record_of", record_of)


SECURITY_BUGS = (
    InjectedBug(stale_acl_cache, 2),
    InjectedBug(deny_after_allow, 2),
    InjectedBug(prefix_is_literal, 2),
    InjectedBug(quotas_left_out_of_snapshots, 2),
    InjectedBug(quotas_lost_on_reload, 7, ("kill_broker",)),
    InjectedBug(deleted_credential_survives_snapshot, 7, ("kill_broker",)),
    InjectedBug(deleted_credential_in_snapshot, 2),
    InjectedBug(entry_is_only_promised, 2),
    InjectedBug(credential_is_not_removed, 2),
)
