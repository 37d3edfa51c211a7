"""Who changed what: configurations, access control entries, users' keys and quotas, as lines of the
logger `moldau.audit`.

Owns the wording of these lines. Must not decide anything. Invariants: what was refused, or was only
to be validated, is no line; a line has names of keys and never a value of a configuration, a
password or a key of SCRAM.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from moldau.metadata.image import ConfigResourceType
from moldau.metadata.image.security import AccessControlEntry
from moldau.metadata.steps import Steps
from moldau.protocol.api_keys import api_name
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p44_incremental_alter_configs import ConfigOperation
from moldau.protocol.schema import Message
from moldau.protocol.scram import MECHANISMS_BY_NUMBER
from moldau.runtime.clock import Clock
from moldau.runtime.telemetry.logs import Event
from moldau.server.audit_log import DEFAULT_MAX_LINES, Lines, entry_text
from moldau.server.request import Sender
from moldau.text import quoted, short_name

CHANGES: Final = logging.getLogger("moldau.audit")

MAX_PARTS: Final = 20
"""Keys that a line names; it counts the others."""


class Change(NamedTuple):
    """One thing that a client has changed.

    Attributes:
        action: the words for it, the same for all of its kind.
        subject: what was changed, quoted.
        parts: the keys of the subject that were changed, and how; quoted.
    """

    action: str
    subject: str
    parts: tuple[str, ...] = ()


class ChangeLog(Lines):
    """The lines of one node, limited as those about refusals are.

    Args:
        max_lines: different lines in ten seconds, `moldau.audit.log.max.lines`.
    """

    __slots__ = ()

    def __init__(self, clock: Clock, max_lines: int = DEFAULT_MAX_LINES) -> None:
        super().__init__(CHANGES, logging.INFO, clock, max_lines)

    def answered(self, sender: Sender, request: Message, changes: Iterator[Change]) -> Steps[None]:
        """Log what an answered request has changed, unless it was only to be validated."""
        if self.is_enabled and not getattr(request, "validate_only", False):
            for change in changes:
                self.changed(sender, change)
                yield

    def changed(self, sender: Sender, change: Change) -> None:
        """Log one change."""
        who = sender.principal, sender.client_host
        self.tell((who, change), who, partial(_event, sender, change))


def configuration_change(resource: Any) -> Change:
    """The change by a resource of AlterConfigs, which takes away what it does not name, or of
    IncrementalAlterConfigs.
    """
    parts = []
    for each in islice(resource.configs, MAX_PARTS):
        operation = getattr(each, "config_operation", ConfigOperation.SET)
        parts.append(f"{ConfigOperation(operation).name} {_shown(each.name)}")
    if len(resource.configs) > MAX_PARTS:
        parts.append(f"and {len(resource.configs) - MAX_PARTS} more")
    subject = f"{ConfigResourceType(resource.resource_type).name}:{_shown(resource.resource_name)}"
    return Change("changed the configuration of", subject, tuple(parts))


def configurations_changed(request: Any, response: Any) -> Iterator[Change]:
    changed = {
        (each.resource_type, each.resource_name)
        for each in response.responses
        if each.error_code == ErrorCode.NONE
    }
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in changed:
            yield configuration_change(resource)


def entries_created(request: Any, response: Any) -> Iterator[Change]:
    for each, result in zip(request.creations, response.results, strict=False):
        if result.error_code == ErrorCode.NONE:
            yield _entry_change("created the ACL", each, each.resource_pattern_type)


def entries_deleted(_request: Any, response: Any) -> Iterator[Change]:
    for result in response.filter_results:
        for each in result.matching_acls:
            if each.error_code == ErrorCode.NONE:
                yield _entry_change("deleted the ACL", each, each.pattern_type)


def _entry_change(action: str, each: Any, pattern_type: int) -> Change:
    entry = AccessControlEntry(
        each.resource_type,
        each.resource_name,
        pattern_type,
        each.principal,
        each.host,
        each.operation,
        each.permission_type,
    )
    return Change(action, entry_text(entry))


def credentials_changed(request: Any, response: Any) -> Iterator[Change]:
    changed = {each.user for each in response.results if each.error_code == ErrorCode.NONE}
    for action, alterations in (
        ("deleted the password of", request.deletions),
        ("set the password of", request.upsertions),
    ):
        for each in alterations:
            if each.name in changed:
                mechanism = MECHANISMS_BY_NUMBER[each.mechanism]
                yield Change(action, f"User:{_shown(each.name)}", (mechanism,))


def quotas_changed(request: Any, response: Any) -> Iterator[Change]:
    changed = {
        frozenset((part.entity_type, part.entity_name) for part in each.entity)
        for each in response.entries
        if each.error_code == ErrorCode.NONE
    }
    for each in request.entries:
        entity = {part.entity_type: part.entity_name for part in each.entity}
        if frozenset(entity.items()) in changed:
            names = (
                f"{kind}={'<default>' if name is None else _shown(name)}"
                for kind, name in sorted(entity.items())
            )
            parts = (f"{'DELETE' if op.remove else 'SET'} {_shown(op.key)}" for op in each.ops)
            yield Change("changed the quotas of", ",".join(names), tuple(islice(parts, MAX_PARTS)))


def _shown(name: str) -> str:
    return quoted(short_name(name))


def _event(sender: Sender, change: Change) -> Event:
    request = None if sender.api_key is None else api_name(sender.api_key)
    fields: dict[str, object] = {
        "principal": short_name(sender.principal),
        "host": sender.client_host,
        "listener": sender.listener_name or None,
        "request": request,
        "action": change.action,
        "subject": change.subject,
        "changes": list(change.parts),
    }
    told = {name: quoted(str(value)) for name, value in fields.items()}
    parts = f": {', '.join(change.parts)}" if change.parts else ""
    text = (
        f"Principal = {told['principal']} from host = {told['host']} on listener = "
        f"{told['listener']} {change.action} {change.subject}{parts}"
    )
    return Event("changed", text, fields, is_counted=True)
