"""What a token must say of itself, at both sides of every limit."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from moldau.sasl.oauthbearer.claims import (
    INSUFFICIENT_SCOPE,
    INVALID_TOKEN,
    MAX_SECONDS,
    ClaimRules,
    TokenRefused,
    TokenUser,
    UnsecuredRules,
    check_claims,
    check_unsecured,
    json_object,
    sections_of,
)

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000.0
RULES = ClaimRules(clock_skew_ms=2_000.0)
UNSECURED = UnsecuredRules(clock_skew_ms=2_000.0)


def claims(**more: Any) -> dict[str, Any]:
    """Good ones; None leaves one out."""
    all_of = {"sub": "erin", "iat": NOW_S - 5, "exp": NOW_S + 5, **more}
    return {name: value for name, value in all_of.items() if value is not None}


def checked(rules: ClaimRules = RULES, **more: Any) -> TokenUser:
    return check_claims(claims(**more), rules, NOW_MS)


def encoded(data: Any) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def unsecured(rules: UnsecuredRules = UNSECURED, **more: Any) -> TokenUser:
    token = f"{encoded({'alg': 'none'})}.{encoded(claims(**more))}."
    return check_unsecured(token, rules, NOW_MS)


def test_a_good_token_names_its_user_and_what_is_left() -> None:
    assert checked() == unsecured() == TokenUser("erin", 5_000.0)
    assert checked(exp=NOW_S + 0.5, name="x") == TokenUser("erin", 500.0)
    by_name = ClaimRules(subject_claim="name", clock_skew_ms=0.0)
    assert checked(by_name, name="x") == TokenUser("x", 5_000.0)


@pytest.mark.parametrize("check", [checked, unsecured])
def test_a_token_ends_when_the_skew_of_clocks_is_over(check: Any) -> None:
    assert check(exp=NOW_S - 1.999) == TokenUser("erin", 0.0)
    with pytest.raises(TokenRefused, match="has expired") as refused:
        check(exp=NOW_S - 2)
    assert (refused.value.status, refused.value.scope) == (INVALID_TOKEN, None)


def test_a_token_begins_when_the_skew_of_clocks_allows() -> None:
    assert checked(nbf=NOW_S + 2).name == "erin"
    with pytest.raises(TokenRefused, match="nbf is in the future"):
        checked(nbf=NOW_S + 2.001)
    assert unsecured(iat=NOW_S + 2).name == "erin"
    with pytest.raises(TokenRefused, match="issued in the future"):
        unsecured(iat=NOW_S + 2.001)
    assert checked(nbf=0, iat=0).name == "erin"
    assert unsecured(iat=None).name == "erin"


def test_a_token_does_not_end_before_it_begins() -> None:
    assert checked(iat=NOW_S + 5).name == "erin"
    with pytest.raises(TokenRefused, match="expires before it is issued or valid"):
        checked(iat=NOW_S + 5.001)
    assert checked(exp=NOW_S + 2, nbf=NOW_S + 2).name == "erin"
    with pytest.raises(TokenRefused, match="expires before it is issued or valid"):
        checked(exp=NOW_S + 1, nbf=NOW_S + 2)
    assert unsecured(iat=NOW_S + 1, exp=NOW_S + 1.001).name == "erin"
    with pytest.raises(TokenRefused, match="expires before it is issued"):
        unsecured(iat=NOW_S + 1, exp=NOW_S + 1)


@pytest.mark.parametrize("value", [-1, "1", True, float("inf"), float("nan"), [1]])
@pytest.mark.parametrize("name", ["exp", "iat", "nbf"])
def test_a_time_is_a_number_of_seconds(name: str, value: Any) -> None:
    with pytest.raises(TokenRefused, match=f"^{name} is no time"):
        checked(**{name: value})


def test_a_time_that_is_missing_or_very_late() -> None:
    for name in ("exp", "iat"):
        with pytest.raises(TokenRefused, match=f"the token has no {name}"):
            checked(**{name: None})
    with pytest.raises(TokenRefused, match="the token has no exp"):
        unsecured(exp=None)
    assert checked(exp=10**400).left_ms == MAX_SECONDS * 1000 - NOW_MS
    assert checked(exp=1e300).left_ms == MAX_SECONDS * 1000 - NOW_MS


def test_an_issuer_is_the_expected_one() -> None:
    rules = ClaimRules(issuer="us")
    assert checked(rules, iss="us").name == "erin"
    assert checked(iss="them").name == "erin"
    for other in ("them", None, ["us"]):
        with pytest.raises(TokenRefused, match="iss is not"):
            checked(rules, iss=other)


def test_an_audience_is_one_of_the_expected_ones() -> None:
    rules = ClaimRules(audiences=("a", "b"))
    for good in ("a", ["x", "b"]):
        assert checked(rules, aud=good).name == "erin"
    for bad in ("x", [], ["x"], None, {"a": 1}, 1):
        with pytest.raises(TokenRefused, match="none of aud"):
            checked(rules, aud=bad)
    assert checked(aud=None).name == "erin"
    for unexpected in ("a", ["a"]):
        with pytest.raises(TokenRefused, match="none of aud"):
            checked(aud=unexpected)


def test_a_scope_has_elements_that_are_texts_and_differ() -> None:
    for good in ("a", ["a", "b"], None, 5, {"a": 1}, []):
        assert checked(scope=good).name == "erin"
    for bad in ("", "  ", ["a", ""], ["a", " "], ["a", "a"], ["a", 1]):
        with pytest.raises(TokenRefused, match="scope has an element"):
            checked(scope=bad)
    assert checked(ClaimRules(scope_claim="scp"), scope="", scp="a").name == "erin"


def test_a_user_has_a_name() -> None:
    for bad in (None, "", " ", 5, ["erin"]):
        with pytest.raises(TokenRefused, match="sub, which names the user"):
            checked(sub=bad)
        with pytest.raises(TokenRefused, match="sub, which names the user"):
            unsecured(sub=bad)


def test_an_unsecured_token_has_the_scopes_that_are_asked_for() -> None:
    rules = UnsecuredRules(required_scope=("a", "b"))
    assert unsecured(rules, scope=["a", "c", "b"]).name == "erin"
    assert unsecured(UnsecuredRules(required_scope=("a",)), scope=" a ").name == "erin"
    for lacking in (None, "a", ["a"], ["a", 1], 5, {"a": 1, "b": 1}):
        with pytest.raises(TokenRefused, match="lacks a scope") as refused:
            unsecured(rules, scope=lacking)
        assert (refused.value.status, refused.value.scope) == (INSUFFICIENT_SCOPE, "a b")
        assert str(refused.value) == "the token lacks a scope"


@pytest.mark.parametrize(
    ("header", "signature"), [({"alg": "RS256"}, b""), ({"alg": "none"}, b"x"), ({}, b"")]
)
def test_an_unsecured_token_is_not_signed(header: dict[str, str], signature: bytes) -> None:
    token = f"{encoded(header)}.{encoded(claims())}.{encoded(signature)}"
    with pytest.raises(TokenRefused, match="the algorithm none, and no signature"):
        check_unsecured(token, UNSECURED, NOW_MS)


def test_a_token_has_three_parts_in_their_one_encoding() -> None:
    assert sections_of("YQ.YmI.") == (b"a", b"bb", b"")
    for wrong in ("YQ.YmI", "YQ.YmI..", ""):
        with pytest.raises(TokenRefused, match="three parts"):
            sections_of(wrong)
    for wrong in ("YQ==.YmI.", "YR.YmI.", "Y.YmI.", "YQ.Ym+.", "YQ.é.", "Y Q.YmI."):
        with pytest.raises(TokenRefused, match="not base64url"):
            sections_of(wrong)


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_a_part_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(TokenRefused, match="the token's claims are no JSON object"):
        json_object(data, "claims")
    assert json_object(b'{"a": 1}', "claims") == {"a": 1}


def test_the_first_second_of_1970_is_a_time() -> None:
    rules = ClaimRules(clock_skew_ms=NOW_MS + 1)
    assert checked(rules, exp=0, iat=0) == TokenUser("erin", 0.0)
    assert checked(rules, exp=0, iat=0, nbf=0) == TokenUser("erin", 0.0)
