"""User names of Kerberos principals; tests/interop/java asks Apache Kafka for the same cases."""

from __future__ import annotations

import pytest

from moldau.sasl.gssapi.local_names import (
    KerberosPrincipal,
    LocalNames,
    LocalRuleError,
    NoLocalName,
)
from tests.unit.sasl.gssapi.local_name_cases import CASES, REALM, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rules} {case.principal}")
def test_user_names(case: Case):
    user: str | None
    try:
        names = LocalNames(case.rules.split(","), REALM)
        user = names.user_name(KerberosPrincipal.parse(case.principal))
    except (LocalRuleError, NoLocalName, ValueError):
        user = None
    assert user == case.user


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("default", "is not DEFAULT or RULE:"),
        ("RULE:[:$1]", "a number of components comes before the colon"),
        ("RULE:[1:$2]", r"\$2 is not one of \$0 to \$1"),
        ("RULE:[1:$1](*)", "is no pattern"),
        ("RULE:[1:$1]s/(a)/$2/", r"no group \$2"),
        ("RULE:[1:$1]s/(a)/${x}/", "no group x"),
        ("RULE:[1:$1]s/a/$/", "stand behind"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_at_once(rule: str, reason: str):
    with pytest.raises(LocalRuleError, match=reason):
        LocalNames(["DEFAULT", rule], REALM)


@pytest.mark.parametrize(
    ("replacement", "user"),
    [("$10", "j"), ("$11", "a1"), ("$100", "j0"), ("$0", "abcdefghij"), ("$1$10", "aj")],
)
def test_a_group_s_number_takes_as_many_digits_as_there_are_groups_for(
    replacement: str, user: str
) -> None:
    names = LocalNames([f"RULE:[1:$1]s/{'(.)' * 10}/{replacement}/"], REALM)
    assert names.user_name(KerberosPrincipal.parse("abcdefghij@R")) == user
