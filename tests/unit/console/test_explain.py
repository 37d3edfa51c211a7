"""What the console says of access is what the brokers' authorizer decides."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from moldau.console.own.explain import Brokers, Question, answer
from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol.access_control import SUPPORTED_OPERATIONS
from moldau.server.standard_authorizer import StandardAuthorizer

PRINCIPALS = ("User:a", "User:b", "User:*")
HOSTS = ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::5", "2001:DB8:0:0:0:0:0:5", "*")
NAMES = ("a", "ab", "abc", "b", "*", "")
TYPES = (AclResourceType.TOPIC, AclResourceType.GROUP)
OPERATIONS = (*SUPPORTED_OPERATIONS[AclResourceType.TOPIC], AclOperation.ALL)
READ, TOPIC = AclOperation.READ, AclResourceType.TOPIC

BINDINGS = st.builds(
    AclBinding,
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((AclPermission.ALLOW, AclPermission.ALLOW, AclPermission.DENY)),
    st.sampled_from(HOSTS),
    st.sampled_from((AclPatternType.LITERAL, AclPatternType.PREFIXED)),
)
QUESTIONS = st.builds(
    Question,
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(("10.0.0.1", "2001:db8::5")),
    st.sampled_from(OPERATIONS[:-1]),
    st.sampled_from(TYPES),
    st.sampled_from(("a", "ab", "abc", "b", "*")),
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
    super_users=st.sampled_from([frozenset(), frozenset({"User:b"})]),
    allows_unmentioned=st.booleans(),
)
def test_the_answer_is_the_authorizers(
    bindings: list[AclBinding],
    question: Question,
    super_users: frozenset[str],
    allows_unmentioned: bool,
) -> None:
    authorizer = StandardAuthorizer(super_users, allows_unmentioned=allows_unmentioned)
    authorizer.change({UUID(int=number): entry(each) for number, each in enumerate(bindings)})
    asked = (
        question.principal,
        question.host,
        question.operation,
        question.resource_type,
        question.resource_name,
    )
    found = answer(question, bindings, Brokers(super_users, allows_unmentioned))
    assert found.is_allowed == authorizer.authorize(*asked)
    rule = authorizer.rule(*asked)
    assert found.is_decided_by_rule == (rule.entry is not None)
    if found.is_decided_by_rule:
        alone = StandardAuthorizer((), allows_unmentioned=False)
        alone.change({UUID(int=1): entry(found.rules[0])})
        assert alone.authorize(*asked) == found.is_allowed
        assert alone.rule(*asked).entry is not None


@given(bindings=st.lists(BINDINGS, max_size=6), question=QUESTIONS)
def test_what_may_not_be_seen_only_adds_doubt_to_a_refusal(
    bindings: list[AclBinding], question: Question
) -> None:
    known = answer(question, bindings, Brokers())
    unseen = answer(question, bindings, Brokers(None, None, has_nodes=True))
    assert (unseen.is_allowed, unseen.rules) == (known.is_allowed, known.rules)
    assert ("which you may not see" in unseen.because) is not known.is_allowed
    assert ("moldau.node.principals" in unseen.because) is not known.is_allowed


def question(operation: AclOperation = READ) -> Question:
    return Question("User:a", "10.0.0.1", operation, TOPIC, "flights")


def test_the_reason_is_said_in_words() -> None:
    reads = AclBinding(TOPIC, "flights", "User:a", READ)
    denies = AclBinding(TOPIC, "*", "User:*", AclOperation.ALL, AclPermission.DENY)
    brokers = Brokers()
    found = answer(question(), [reads], brokers)
    assert (found.because, found.rules) == ("An entry allows it.", (reads,))
    found = answer(question(AclOperation.DESCRIBE), [reads], brokers)
    assert found.because == "An entry allows READ, which implies it."
    found = answer(question(), [reads, denies], brokers)
    assert (found.because, found.rules) == (
        "An entry denies it, whatever others allow.",
        (denies, reads),
    )
    found = answer(question(), [denies], Brokers(frozenset({"User:a"})))
    assert found.because == "super.users names User:a: super users may do everything."
    assert (found.is_allowed, found.is_decided_by_rule) == (True, False)
    assert answer(question(), [], brokers).because == "No entry allows it."
    free = answer(question(), [], Brokers(allows_unmentioned=True))
    assert free.is_allowed
    assert "allow.everyone.if.no.acl.found" in free.because


@pytest.mark.parametrize("name", ["other", "flight", "Flights"])
def test_entries_about_others_are_not_shown(name: str) -> None:
    entries = [
        AclBinding(TOPIC, name, "User:a", READ),
        AclBinding(TOPIC, "flights", "User:b", READ),
        AclBinding(TOPIC, "flights", "User:a", READ, host="10.0.0.2"),
        AclBinding(AclResourceType.GROUP, "flights", "User:a", READ),
    ]
    assert answer(question(), entries, Brokers()).rules == ()
