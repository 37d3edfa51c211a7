"""What `moldau acls check` says is what the brokers' authorizer decides."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.acls import Question, decide
from moldau.client.admin.security import AclBinding
from moldau.config.principals import NodePrincipals
from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol.access_control import (
    SUPPORTED_OPERATIONS,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.server.standard_authorizer import StandardAuthorizer

PRINCIPALS = ("User:a", "User:b", "User:*")
HOSTS = ("10.0.0.1", "2001:db8::5", "::ffff:10.0.0.1", "2001:DB8:0:0:0:0:0:5", "*")
OTHER_FORMS = {
    "10.0.0.1": ("::FFFF:10.0.0.1",),
    "2001:db8::5": ("2001:db8:0:0:0:0:0:5", "2001:DB8::5%eth0"),
}
NAMES = ("a", "ab", "abc", "b", "*")
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = (*SUPPORTED_OPERATIONS[ResourceType.TOPIC], Operation.ALL)

BINDINGS = st.builds(
    AclBinding,
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((PermissionType.ALLOW, PermissionType.ALLOW, PermissionType.DENY)),
    st.sampled_from(HOSTS),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
)
QUESTIONS = st.builds(
    Question,
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(HOSTS[:2]),
    st.sampled_from(OPERATIONS[:-1]),
    st.sampled_from(TYPES),
    st.sampled_from(NAMES[:-1]),
)


def entry(binding: AclBinding) -> AccessControlEntry:
    return AccessControlEntry(
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


@given(
    bindings=st.lists(BINDINGS, max_size=6),
    question=QUESTIONS,
    super_users=st.sampled_from([(), ("User:b",)]),
    allows_unmentioned=st.booleans(),
    nodes=st.sampled_from([None, NodePrincipals(""), NodePrincipals("User:a;User:c")]),
)
def test_the_decision_is_the_authorizers(
    bindings: list[AclBinding],
    question: Question,
    super_users: tuple[str, ...],
    allows_unmentioned: bool,
    nodes: NodePrincipals | None,
):
    authorizer = StandardAuthorizer(super_users, allows_unmentioned=allows_unmentioned, nodes=nodes)
    how = {"super_users": super_users, "allows_unmentioned": allows_unmentioned, "nodes": nodes}
    authorizer.change({UUID(int=number): entry(each) for number, each in enumerate(bindings)})
    decision = decide(question, bindings, **how)
    assert decision.is_allowed == authorizer.authorize(*question)
    for other in OTHER_FORMS[question.host]:
        written = question._replace(host=other)
        assert decision == decide(written, bindings, **how)
    if decision.binding is not None:
        denies = decision.binding.permission == PermissionType.DENY
        assert denies != decision.is_allowed


@pytest.mark.parametrize("written", ["::ffff:10.0.0.1", "0:0:0:0:0:FFFF:A00:1", "10.0.0.1"])
def test_the_host_of_an_entry_is_an_address(written: str):
    denied = AclBinding(
        ResourceType.TOPIC, "a", "User:a", Operation.READ, PermissionType.DENY, written
    )
    question = Question("User:a", "10.0.0.1", Operation.READ, ResourceType.TOPIC, "a")
    told = decide(question, [denied], super_users=(), allows_unmentioned=False)
    assert told == (False, "an entry denies it, whatever others allow", denied)


def test_the_reason_names_what_decides():
    allowed = AclBinding(ResourceType.TOPIC, "a", "User:a", Operation.READ)
    denied = AclBinding(ResourceType.TOPIC, "*", "User:*", Operation.ALL, PermissionType.DENY)
    question = Question("User:a", "10.0.0.1", Operation.DESCRIBE, ResourceType.TOPIC, "a")
    told = decide(question, [allowed], super_users=(), allows_unmentioned=False)
    assert told == (True, "an entry allows what implies it", allowed)
    told = decide(question, [allowed, denied], super_users=(), allows_unmentioned=False)
    assert told == (False, "an entry denies it, whatever others allow", denied)
    told = decide(question, [denied], super_users=("User:a",), allows_unmentioned=False)
    assert told == (True, "super.users names User:a", None)
    told = decide(question, [], super_users=(), allows_unmentioned=False)
    assert told == (False, "no entry allows it", None)
