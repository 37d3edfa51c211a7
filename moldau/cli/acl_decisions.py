"""Which access control entry decides, and why, as StandardAuthorizer does (KIP-801).

Must not ask a cluster: entries and the node's settings come from the caller. Invariant: the answer
is that of the brokers' authorizer for the same entries and settings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple
from uuid import UUID

from moldau.addresses import canonical_address
from moldau.client.admin.security import AclBinding
from moldau.config.principals import KEY, NodePrincipals
from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol.access_control import Operation, ResourceType
from moldau.server.standard_authorizer import StandardAuthorizer

#: By the authorizer's name of the rule, where no entry decides.
REASONS: Final = {
    "SuperUser": "super.users names {0}",
    "NodePrincipal": f"{KEY} has {{0}}, and nodes need it",
    "NoAclFound": "no entry is about the resource, and allow.everyone.if.no.acl.found=true",
    "DefaultDeny": "no entry allows it",
}


class Question(NamedTuple):
    """What a principal wants to do.

    Attributes:
        host: the client's IP address, in any form.
    """

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    resource_name: str


class Decision(NamedTuple):
    """The answer: allowed or not, the reason in words, and the entry that decides, if one does."""

    is_allowed: bool
    reason: str
    binding: AclBinding | None = None


def decide(
    question: Question,
    bindings: Sequence[AclBinding],
    *,
    super_users: Collection[str],
    allows_unmentioned: bool,
    nodes: NodePrincipals | None = None,
) -> Decision:
    """The decision about one question.

    Args:
        bindings: every entry that may concern the resource; others do no harm.
        super_users: principals that may do all, as the node is configured.
        allows_unmentioned: whether every principal may do what no entry is about.
        nodes: which principals are nodes, as the node is configured.
    """
    asked = question._replace(host=canonical_address(question.host))
    authorizer = _authorizer(bindings, super_users, allows_unmentioned, nodes)
    rule, is_allowed = authorizer.rule(*asked), authorizer.authorize(*asked)
    if rule.entry is None:
        return Decision(is_allowed, REASONS[rule.name].format(question.principal))
    alike = (each for each in bindings if each.permission == rule.entry.permission_type)
    binding = next(each for each in alike if _authorizer([each]).rule(*asked).entry is not None)
    if not is_allowed:
        return Decision(False, "an entry denies it, whatever others allow", binding)
    is_named = binding.operation in (question.operation, Operation.ALL)
    what = "it" if is_named else "what implies it"
    return Decision(True, f"an entry allows {what}", binding)


def _authorizer(
    bindings: Sequence[AclBinding],
    super_users: Collection[str] = (),
    allows_unmentioned: bool = False,
    nodes: NodePrincipals | None = None,
) -> StandardAuthorizer:
    made = StandardAuthorizer(super_users, allows_unmentioned=allows_unmentioned, nodes=nodes)
    fields = [asdict(each) for each in bindings]
    entries = [
        AccessControlEntry(permission_type=each.pop("permission"), **each) for each in fields
    ]
    made.change({UUID(int=number): each for number, each in enumerate(entries)})
    return made
