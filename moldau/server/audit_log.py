"""What was denied, what was allowed, and which authentication failed, as lines of two loggers.

Owns the wording of these lines, and what a `Brake` counts of them. Must not decide anything, or log
what was changed (`change_log` does). Invariants: an event is one line, and no name in it can be
taken for another part of it; what a client does a hundred thousand times is one line and a count;
whatever others do, each sender has its own line in an interval, and a count of what is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.addresses import network_of
from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.protocol.api_keys import api_name
from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.telemetry.brake import Brake, Names
from moldau.runtime.telemetry.logs import Event
from moldau.text import quoted, short_name

if TYPE_CHECKING:
    from moldau.metadata.image.security import AccessControlEntry
    from moldau.server.memory_shares import Share

logger: Final = logging.getLogger(__name__)
AUTHORIZER: Final = logging.getLogger("moldau.authorizer")
"""Denied actions at INFO, allowed ones at DEBUG: Kafka's `kafka.authorizer.logger`."""
AUTHENTICATION: Final = logging.getLogger("moldau.authentication")
"""Failed authentications, at WARNING."""

INTERVAL_MS: Final = 10_000.0
DEFAULT_MAX_LINES: Final = 100
MAX_SENDERS: Final = 1_000
"""Who has its own line in an interval, beside those of `max_lines`, and a count."""


class Rule(NamedTuple):
    """Why the authorizer decides as it does.

    Attributes:
        name: SuperUser, NodePrincipal, MatchingAcl, NoAclFound or DefaultDeny.
        entry: the one that decides, of MatchingAcl.
    """

    name: str
    entry: AccessControlEntry | None = None


class Lines:
    """Lines of one kind: the first of each in ten seconds, and when these are over a count of those
    like it, and of those that found no room.

    Args:
        max_lines: different lines in an interval, `moldau.audit.log.max.lines`.
    """

    __slots__ = ("_brake", "_clock", "_level", "_logger", "_timer")

    def __init__(self, logger: logging.Logger, level: int, clock: Clock, max_lines: int) -> None:
        self._logger = logger
        self._level = level
        self._clock = clock
        self._brake: Brake[Event] = Brake(
            clock,
            max_lines=1,
            interval_ms=INTERVAL_MS,
            max_messages=max_lines,
            max_senders=MAX_SENDERS,
        )
        self._timer: TimerHandle | None = None

    @property
    def is_enabled(self) -> bool:
        return self._logger.isEnabledFor(self._level)

    def tell(self, key: Hashable, sender: Names, event: Callable[[], Event]) -> None:
        """Write a line, or count it.

        Args:
            key: equal for lines that say the same.
            sender: who causes it: a network, or a principal and its host.
        """
        line = self._brake.take(key, event, sender)
        if line is not None:
            self._logger.log(self._level, line)
        self._arm()

    def close(self) -> None:
        """Write the counts that are due."""
        self._write_counts(with_early=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due_ms = self._brake.due_ms()
        if self._timer is None and due_ms is not None:
            delay_ms = due_ms - self._clock.monotonic_ms()
            self._timer = self._clock.call_later(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._write_counts()
        self._arm()

    def _write_counts(self, *, with_early: bool = False) -> None:
        for line, sender, count in self._brake.take_counts(with_early=with_early):
            if line is not None:
                text = f"{line}: {count} more times within {INTERVAL_MS / 1000:.0f} s"
                fields = {**line.fields, "repeated": count}
                counted = Event(line.name, text, fields, is_counted=True)
            else:
                who = _who(sender) if sender else "others"
                text = f"{count} more lines like these are left out, of {who}"
                fields = {"sender": who, "left_out": count}
                counted = Event("lines left out", text, fields, is_counted=True)
            self._logger.log(self._level, counted)


class DecisionLog:
    """The authorizer's decisions; those that are no refusal of a request stay out of it."""

    __slots__ = ("_allowed", "_denied")

    def __init__(self, clock: Clock, max_lines: int = DEFAULT_MAX_LINES) -> None:
        self._denied = Lines(AUTHORIZER, logging.INFO, clock, max_lines)
        self._allowed = Lines(AUTHORIZER, logging.DEBUG, clock, max_lines)

    @property
    def tells_allowed(self) -> bool:
        """Whether allowed actions are logged, too."""
        return AUTHORIZER.isEnabledFor(logging.DEBUG)

    def decided(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
        rule: Callable[[], Rule],
        *,
        is_allowed: bool,
        listener: str,
        request: int | None,
    ) -> None:
        """Log one decision, if its level is; `rule` is asked for only if there is a line. `request`
        is the API's number.
        """
        lines = self._allowed if is_allowed else self._denied
        if not lines.is_enabled:
            return
        # As plain numbers: the hash of an Enum's member is a function of Python.
        kinds = (int(operation), int(resource_type))
        key = (principal, host, kinds, resource_name, request, listener)

        def event() -> Event:
            fields: dict[str, object] = {
                "principal": short_name(principal),
                "allowed": is_allowed,
                "operation": operation.name,
                "host": host,
                "resource_type": resource_type.name,
                "pattern_type": PatternType.LITERAL.name,
                "resource_name": short_name(resource_name),
                "request": None if request is None else api_name(request),
                "listener": listener or None,
            }
            reason = rule()
            fields["rule"] = reason.name
            if reason.entry is not None:
                fields["acl"] = _entry_fields(reason.entry)
            name = "action allowed" if is_allowed else "action denied"
            return Event(name, _decision_text(fields, reason), fields, is_counted=True)

        lines.tell(key, (principal, host), event)

    def close(self) -> None:
        """Write the counts that are due."""
        self._denied.close()
        self._allowed.close()


class AuthenticationLog(Lines):
    """Authentications that failed, whatever the listener speaks."""

    __slots__ = ()

    def __init__(self, clock: Clock, max_lines: int = DEFAULT_MAX_LINES) -> None:
        super().__init__(AUTHENTICATION, logging.WARNING, clock, max_lines)

    def failed(self, listener_name: str, host: str, reason: str) -> None:
        """Log a failure; `reason` may name the user, and holds no secret."""
        if not self.is_enabled:
            return

        def event() -> Event:
            text = (
                f"failed authentication from host = {quoted(host)} on listener = "
                f"{quoted(listener_name)}: {short_name(reason)}"
            )
            fields: dict[str, object] = {
                "host": host,
                "listener": listener_name,
                "reason": short_name(reason),
            }
            return Event("authentication failed", text, fields, is_counted=True)

        self.tell((listener_name, host, reason), (network_of(host),), event)


class SharesLog(Lines):
    """Principals and addresses that hold so much memory that they or others have to wait."""

    __slots__ = ()

    def __init__(self, clock: Clock, max_lines: int = DEFAULT_MAX_LINES) -> None:
        super().__init__(logger, logging.WARNING, clock, max_lines)

    def took_too_much(self, share: Share, what_follows: str) -> None:
        """Log what the principal and the address of an account hold."""
        principal, host, budget = share.user or "User:ANONYMOUS", share.host, share.budget

        def event() -> Event:
            name, listener = short_name(principal), share.owner.listener_name
            fields: dict[str, object] = {
                "principal": name,
                "host": host,
                "listener": listener,
                "principal_bytes": share.principal.held_bytes,
                "host_bytes": share.address.held_bytes,
                "unread_bytes": share.unread_by_reader,
                "share_bytes": budget.share_bytes,
                "waiting": budget.waiting_count,
            }
            text = (
                f"Principal = {quoted(name)} holds {share.principal.held_bytes} bytes and "
                f"host = {quoted(host)} holds {share.address.held_bytes} of the "
                f"{budget.limit_bytes} bytes for requests of {budget.kind.value} on listener = "
                f"{quoted(listener)}, and {share.unread_by_reader} bytes of unread answers, where "
                f"moldau.fair.share is {budget.share_bytes} bytes: {what_follows}"
            )
            return Event("more memory than a fair share", text, fields, is_counted=True)

        self.tell((budget.kind, principal, host, what_follows), (principal, host), event)


def _who(sender: Names) -> str:
    *principal, host = (quoted(short_name(each)) for each in sender)
    return f"Principal = {principal[0]} from host = {host}" if principal else f"host = {host}"


def _decision_text(fields: dict[str, object], rule: Rule) -> str:
    """The text in the order and the words in which log parsers know Kafka's lines."""
    told = {name: quoted(str(value)) for name, value in fields.items()}
    verdict = "Allowed" if fields["allowed"] else "Denied"
    resource = _resource_text(fields, told)
    reason = rule.name if rule.entry is None else f"{rule.name}({entry_text(rule.entry)})"
    return (
        f"Principal = {told['principal']} is {verdict} operation = {told['operation']} "
        f"from host = {told['host']} on resource = {resource} for request = {told['request']} "
        f"on listener = {told['listener']} based on rule {reason}"
    )


def _entry_fields(entry: AccessControlEntry) -> dict[str, object]:
    return {
        "permission": PermissionType(entry.permission_type).name,
        "operation": Operation(entry.operation).name,
        "principal": short_name(entry.principal),
        "host": entry.host,
        "resource_type": ResourceType(entry.resource_type).name,
        "pattern_type": PatternType(entry.pattern_type).name,
        "resource_name": short_name(entry.resource_name),
    }


def entry_text(entry: AccessControlEntry) -> str:
    """An access control entry in words, its names quoted."""
    fields = _entry_fields(entry)
    told = {name: quoted(str(value)) for name, value in fields.items()}
    return (
        f"{told['permission']} {told['operation']} of {told['principal']} from host "
        f"{told['host']} on {_resource_text(fields, told)}"
    )


def _resource_text(fields: dict[str, object], told: dict[str, str]) -> str:
    """As in `TransactionalId:LITERAL:payments`, Kafka's words."""
    kind = str(fields["resource_type"]).title().replace("_", "")
    return f"{kind}:{fields['pattern_type']}:{told['resource_name']}"
