"""CreateAcls and DeleteAcls: checks, and the records of entries that come and go (KIP-140).

Owns: what is wrong with a wanted entry. Must not: change state, ask who may change entries, or
decide by them (`server.standard_authorizer` does). Invariants: no two entries say the same; what
one item of a request is refused for leaves the others alone.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from moldau.config.node_config import NO_AUTHORIZER
from moldau.controller.core.result import MAX_RECORDS_PER_REQUEST, Asked, ControllerResult, Refusal
from moldau.controller.core.state import ControllerState
from moldau.metadata.access_filter import FIELDS, EntryFilter
from moldau.metadata.image.security import AccessControlEntry
from moldau.metadata.steps import Steps
from moldau.protocol.access_control import (
    CLUSTER_RESOURCE_NAME,
    ResourceType,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p30_create_acls as p30
from moldau.protocol.messages import p31_delete_acls as p31
from moldau.protocol.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)
from moldau.protocol.types import random_topic_id

ANY: Final = "ANY"
MATCH: Final = "MATCH"


def create_acls(
    state: ControllerState, request: p30.CreateAclsRequest, _asked: Asked
) -> Steps[ControllerResult[p30.CreateAclsResponse]]:
    """CreateAcls: an entry that exists already is no error, and makes no record."""
    result = ControllerResult(p30.CreateAclsResponse())
    results = result.response.results
    is_too_much = len(request.creations) > MAX_RECORDS_PER_REQUEST
    made: set[AccessControlEntry] = set()
    for creation in request.creations:
        yield
        entry = AccessControlEntry(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
        try:
            if is_too_much:
                raise _too_many("create")
            _check(state, entry)
        except Refusal as refusal:
            results.append(
                p30.AclCreationResult(error_code=refusal.error, error_message=refusal.message)
            )
            continue
        results.append(p30.AclCreationResult())
        if entry not in made and entry not in state.access_control_entries:
            made.add(entry)
            entry_id = random_topic_id(state.random)  # type: ignore[arg-type]
            result.records.append((AccessControlEntryRecord(id=entry_id, **entry._asdict()), 0))
    return result


def _too_many(verb: str) -> Refusal:
    return Refusal.too_many(f"one request may {verb} at most {MAX_RECORDS_PER_REQUEST} entries")


def _check(state: ControllerState, entry: AccessControlEntry) -> None:
    """Raises Refusal: the entry cannot be one."""
    if not state.settings.node_config.has_authorizer:
        raise Refusal(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    name = entry.resource_name
    if entry.resource_type == ResourceType.CLUSTER and name != CLUSTER_RESOURCE_NAME:
        raise Refusal.invalid(
            f"the only resource of type CLUSTER is {CLUSTER_RESOURCE_NAME!r}, not {name!r}"
        )
    if not name:
        raise Refusal.invalid("the resource's name is empty")
    for field, known in FIELDS.items():
        value = getattr(entry, field)
        if known.get(value, ANY) in (ANY, MATCH):
            allowed = ", ".join(
                f"{number} {word}" for number, word in known.items() if word not in (ANY, MATCH)
            )
            raise Refusal.invalid(f"{field} {value} is none of {allowed}")
    if ":" not in entry.principal:
        raise Refusal.invalid(f"principal {entry.principal!r} is not TYPE:NAME, such as User:alice")


def delete_acls(
    state: ControllerState, request: p31.DeleteAclsRequest, _asked: Asked
) -> Steps[ControllerResult[p31.DeleteAclsResponse]]:
    """DeleteAcls: every entry that a filter matches, named for each filter that does."""
    result = ControllerResult(p31.DeleteAclsResponse())
    results = result.response.filter_results
    removed: dict[UUID, None] = {}
    for requested in request.filters:
        chosen = EntryFilter.of(requested)
        answer = p31.DeleteAclsFilterResult(error_message=None)
        results.append(answer)
        if not state.settings.node_config.has_authorizer:
            answer.error_code, answer.error_message = ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER
            continue
        if chosen.unknown is not None:
            answer.error_code = ErrorCode.INVALID_REQUEST
            answer.error_message = f"{chosen.unknown} is unknown"
            continue
        for entry, entry_id in state.access_control_entries.items():
            yield
            if not chosen.matches(entry):
                continue
            removed[entry_id] = None
            answer.matching_acls.append(
                p31.DeleteAclsMatchingAcl(error_message=None, **entry._asdict())
            )
    if len(removed) > MAX_RECORDS_PER_REQUEST:
        refusal = _too_many("delete")
        for answer in results:
            answer.error_code, answer.error_message = refusal.error, refusal.message
            answer.matching_acls = []
        return result
    result.records += [(RemoveAccessControlEntryRecord(id=each), 0) for each in removed]
    return result
