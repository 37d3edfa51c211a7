"""Which access control entry decides, and why, as StandardAuthorizer does (KIP-801).

Must not ask a cluster: entries and the node's settings come from the caller. Invariant: the answer
is that of the brokers' authorizer for the same entries and settings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from moldau.addresses import canonical_address
from moldau.client.admin.security import AclBinding
from moldau.config.principals import KEY, NodePrincipals
from moldau.protocol.access_control import (
    ANY_PRINCIPAL,
    WILDCARD,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.server.standard_authorizer import IMPLIED, may_as_node


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
    if question.principal in super_users:
        return Decision(True, f"super.users names {question.principal}")
    asked = (question.operation, question.resource_type, question.resource_name)
    if nodes and may_as_node(nodes, question.principal, *asked):
        return Decision(True, f"{KEY} has {question.principal}, and nodes need it")
    question = question._replace(host=canonical_address(question.host))
    about = [each for each in bindings if _is_about(each, question)]
    mine = [each for each in about if _is_of(each, question)]
    for each in mine:
        if each.permission == PermissionType.DENY and _names(each, question.operation):
            return Decision(False, "an entry denies it, whatever others allow", each)
    for each in mine:
        if each.permission != PermissionType.ALLOW:
            continue
        if _names(each, question.operation):
            return Decision(True, "an entry allows it", each)
        if IMPLIED.get(each.operation, 0) & 1 << question.operation:
            return Decision(True, "an entry allows what implies it", each)
    if about or not allows_unmentioned:
        return Decision(False, "no entry allows it")
    return Decision(True, "no entry is about the resource, and allow.everyone.if.no.acl.found=true")


def _is_about(binding: AclBinding, question: Question) -> bool:
    if binding.resource_type != question.resource_type:
        return False
    if binding.pattern_type == PatternType.PREFIXED:
        return question.resource_name.startswith(binding.resource_name)
    return binding.resource_name in (question.resource_name, WILDCARD)


def _is_of(binding: AclBinding, question: Question) -> bool:
    hosts = (question.host, WILDCARD)
    return (
        binding.principal in (question.principal, ANY_PRINCIPAL)
        and canonical_address(binding.host) in hosts
    )


def _names(binding: AclBinding, operation: Operation) -> bool:
    return binding.operation in (operation, Operation.ALL)
