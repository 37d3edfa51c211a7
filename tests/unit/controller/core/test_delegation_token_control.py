"""Delegation tokens at the controller: made, prolonged, ended, swept, limited, kept (KIP-48)."""

from __future__ import annotations

import hmac
from collections import Counter
from typing import Any

import pytest

from moldau.config.definition import Password
from moldau.controller import permitted_parts
from moldau.controller.core import delegation_token_control
from moldau.controller.core.delegation_token_control import (
    MAX_NAME_CHARACTERS,
    MAX_RENEWERS,
    MAX_SWEPT,
)
from moldau.metadata.image import MetadataImage
from moldau.metadata.image.metadata_image import MetadataDelta
from moldau.metadata.image.security import DelegationToken
from moldau.metadata.steps import at_once
from moldau.metadata.token_secrets import TokenSecrets
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p38_create_delegation_token import (
    CreateDelegationTokenRequest,
    TokenPrincipal,
)
from moldau.protocol.messages.p39_renew_delegation_token import RenewDelegationTokenRequest
from moldau.protocol.messages.p40_expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.metadata_records import DelegationTokenRecord, RemoveDelegationTokenRecord
from moldau.server.authorizer import Authorizer
from moldau.server.request import Sender
from tests.unit.metadata.builders import CoreDriver

KEY = {"delegation.token.secret.key": "s3cret"}
NOW_MS = 1_700_000_000_000
DAY_MS, WEEK_MS = 86_400_000, 604_800_000
ALICE, BOB = "User:alice", "User:bob"


@pytest.fixture
def driver() -> CoreDriver:
    return CoreDriver(**KEY)


@pytest.fixture
def driver_of_three() -> CoreDriver:
    """An owner may have three tokens."""
    return CoreDriver(**KEY, **{"moldau.delegation.token.max.per.owner": "3"})


def create(driver: CoreDriver, who: str = ALICE, now_ms: int = NOW_MS, **fields: Any) -> Any:
    fields.setdefault("renewers", [])
    return driver.ask(CreateDelegationTokenRequest(**fields), principal=who, time_ms=now_ms)


def renew(driver: CoreDriver, secret: bytes, who: str, now_ms: int, period_ms: int = -1) -> Any:
    request = RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
    return driver.ask(request, principal=who, time_ms=now_ms)


def expire(driver: CoreDriver, secret: bytes, who: str, now_ms: int, period_ms: int = -1) -> Any:
    request = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
    return driver.ask(request, principal=who, time_ms=now_ms)


def tokens(driver: CoreDriver) -> Any:
    return driver.core.state.image.delegation_tokens.tokens_by_id


def test_a_token_and_its_secret(driver: CoreDriver) -> None:
    made = create(driver, renewers=[TokenPrincipal(principal_type="User", principal_name="bob")])
    assert made.error_code == ErrorCode.NONE
    assert made.hmac == hmac.digest(b"s3cret", made.token_id.encode(), "sha512")
    assert tokens(driver)[made.token_id] == DelegationToken(
        ALICE, ALICE, (BOB,), NOW_MS, NOW_MS + WEEK_MS, NOW_MS + DAY_MS
    )
    # Neither the records nor what is shown of the controller has a secret.
    assert made.hmac not in b"".join(record.to_bytes(0) for record in driver.appended)
    assert "s3cret" not in repr(driver.core.state.token_secrets)


def test_the_life_of_a_token(driver: CoreDriver) -> None:
    made = create(driver, renewers=[TokenPrincipal(principal_type="User", principal_name="bob")])
    secret = made.hmac
    at_ms = NOW_MS
    for _ in range(6):
        at_ms += DAY_MS
        assert renew(driver, secret, BOB, at_ms).expiry_timestamp_ms == at_ms + DAY_MS
    assert renew(driver, secret, BOB, at_ms + 1).expiry_timestamp_ms == NOW_MS + WEEK_MS
    assert renew(driver, secret, "User:eve", at_ms).error_code == (
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    )
    # The last millisecond counts.
    assert renew(driver, secret, ALICE, NOW_MS + WEEK_MS).error_code == ErrorCode.NONE
    late_ms = NOW_MS + WEEK_MS + 1
    assert renew(driver, secret, ALICE, late_ms).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    ended = expire(driver, secret, ALICE, late_ms, 0)
    assert ended.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(driver, secret, ALICE, late_ms).expiry_timestamp_ms == late_ms
    assert not tokens(driver)
    gone = renew(driver, secret, ALICE, late_ms)
    assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_expired_tokens_are_swept_in_batches(driver: CoreDriver) -> None:
    driver.append(
        [
            (
                DelegationTokenRecord(
                    owner=ALICE,
                    requester=ALICE,
                    renewers=[],
                    max_timestamp=end_ms + 1,
                    expiration_timestamp=end_ms,
                    token_id=f"{end_ms}",
                ),
                0,
            )
            for end_ms in range(NOW_MS - MAX_SWEPT - 10, NOW_MS + 2)
        ]
    )
    swept = []
    while records := driver.core.expired_tokens(NOW_MS):
        swept.append(len(records))
        driver.append(records)
    assert swept == [MAX_SWEPT, 10]
    assert set(tokens(driver)) == {f"{NOW_MS}", f"{NOW_MS + 1}"}


def test_where_there_are_no_tokens() -> None:
    without = CoreDriver()
    for answer in (
        create(without),
        renew(without, b"x", ALICE, NOW_MS),
        expire(without, b"x", ALICE, NOW_MS),
    ):
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    old = CoreDriver(release="3.6-IV1", **KEY)
    for answer in (
        create(old),
        renew(old, b"x", ALICE, NOW_MS),
        expire(old, b"x", ALICE, NOW_MS),
    ):
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert create(CoreDriver(release="3.6-IV2", **KEY)).error_code == ErrorCode.NONE


def test_no_token_is_a_node_s() -> None:
    driver = CoreDriver(**KEY, **{"moldau.node.principals": "User:kafka-*"})
    for owner in ("kafka-1", "nodes", "ANONYMOUS"):
        for asked in (
            create(driver, f"User:{owner}"),
            create(driver, owner_principal_type="User", owner_principal_name=owner),
        ):
            assert asked.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert not tokens(driver)
    assert create(driver).error_code == ErrorCode.NONE


def test_what_is_kept_is_limited(driver: CoreDriver) -> None:
    bob = TokenPrincipal(principal_type="User", principal_name="bob")
    long = TokenPrincipal(principal_type="User", principal_name="x" * MAX_NAME_CHARACTERS)
    for wrong in (
        {"renewers": [bob] * (MAX_RENEWERS + 1)},
        {"renewers": [long]},
        {"owner_principal_type": "User", "owner_principal_name": "x" * MAX_NAME_CHARACTERS},
    ):
        assert create(driver, **wrong).error_code == ErrorCode.INVALID_REQUEST
    assert create(driver, renewers=[bob] * MAX_RENEWERS).error_code == ErrorCode.NONE


def times(answer: Any) -> tuple[int, int, int]:
    return answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms


@pytest.mark.parametrize(
    ("lifetime_ms", "max_ms"),
    [(0, WEEK_MS), (-1, WEEK_MS), (1, 1), (2 * DAY_MS, 2 * DAY_MS), (WEEK_MS + 1, WEEK_MS)],
)
def test_a_token_lives_as_long_as_is_asked_for_and_no_longer_than_is_allowed(
    driver: CoreDriver, lifetime_ms: int, max_ms: int
) -> None:
    made = create(driver, max_lifetime_ms=lifetime_ms)
    end_ms = min(max_ms, DAY_MS)
    assert times(made) == (NOW_MS, NOW_MS + end_ms, NOW_MS + max_ms)
    assert tokens(driver)[made.token_id][3:] == (NOW_MS, NOW_MS + max_ms, NOW_MS + end_ms)


def test_a_token_that_is_refused_has_no_times(driver: CoreDriver) -> None:
    """Zeros, and -1 for a renewer that is no user: as Apache Kafka."""
    long = {"owner_principal_type": "User", "owner_principal_name": "x" * MAX_NAME_CHARACTERS}
    refused = create(driver, **long)
    assert (refused.error_code, times(refused)) == (ErrorCode.INVALID_REQUEST, (0, 0, 0))
    assert (refused.token_id, refused.hmac) == ("", b"")
    group = TokenPrincipal(principal_type="Group", principal_name="g")
    refused = create(driver, renewers=[group])
    assert refused.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert times(refused) == (-1, -1, -1)
    assert not tokens(driver)


@pytest.mark.parametrize(
    ("period_ms", "end_ms"),
    [(-1, DAY_MS), (0, DAY_MS), (1, 1), (5, 5), (DAY_MS, DAY_MS), (DAY_MS + 1, DAY_MS)],
)
def test_a_renewal_lasts_as_long_as_is_asked_for_and_no_longer_than_is_allowed(
    driver: CoreDriver, period_ms: int, end_ms: int
) -> None:
    made = create(driver)
    at_ms = NOW_MS + 1_000
    renewed = renew(driver, made.hmac, ALICE, at_ms, period_ms)
    assert renewed.expiry_timestamp_ms == at_ms + end_ms
    assert tokens(driver)[made.token_id].expiration_timestamp == at_ms + end_ms
    assert tokens(driver)[made.token_id].max_timestamp == NOW_MS + WEEK_MS


@pytest.mark.parametrize(
    ("period_ms", "end_ms"), [(0, 0), (1, 1), (DAY_MS, DAY_MS), (2 * WEEK_MS, WEEK_MS - 1_000)]
)
def test_an_end_may_be_set(driver: CoreDriver, period_ms: int, end_ms: int) -> None:
    made = create(driver, renewers=[TokenPrincipal(principal_type="User", principal_name="bob")])
    at_ms = NOW_MS + 1_000
    eve = expire(driver, made.hmac, "User:eve", at_ms, period_ms)
    assert eve.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert not driver.appended
    ended = expire(driver, made.hmac, BOB, at_ms, period_ms)
    assert (ended.error_code, ended.expiry_timestamp_ms) == (0, at_ms + end_ms)
    assert tokens(driver)[made.token_id].expiration_timestamp == at_ms + end_ms
    assert renew(driver, made.hmac, BOB, at_ms + end_ms).error_code == ErrorCode.NONE


def test_a_renewer_s_refusal_changes_nothing(driver: CoreDriver) -> None:
    made = create(driver)
    before = driver.image
    assert renew(driver, made.hmac, BOB, NOW_MS).error_code != ErrorCode.NONE
    assert renew(driver, b"x", ALICE, NOW_MS).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    late = renew(driver, made.hmac, ALICE, NOW_MS + DAY_MS + 1)
    assert late.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert driver.image is before


def test_names_of_a_token_fit_up_to_their_limit(driver: CoreDriver) -> None:
    owner = "x" * (MAX_NAME_CHARACTERS - len("User:"))
    renewers = [TokenPrincipal(principal_type="User", principal_name=owner)]
    fields = {"owner_principal_type": "User", "owner_principal_name": owner}
    assert create(driver, renewers=renewers, **fields).error_code == ErrorCode.NONE
    other = {**fields, "owner_principal_name": owner + "x"}
    assert create(driver, **other).error_code == ErrorCode.INVALID_REQUEST
    renewers.append(TokenPrincipal(principal_type="User", principal_name=""))
    assert create(driver, renewers=renewers).error_code == ErrorCode.INVALID_REQUEST
    assert len(tokens(driver)) == 1


# -- shares ----------------------------------------------------------------------------------------


def test_an_owner_has_so_many_tokens_and_leaves_those_of_others(
    driver_of_three: CoreDriver,
) -> None:
    driver = driver_of_three
    made = [create(driver) for _ in range(4)]
    assert [each.error_code for each in made] == [ErrorCode.NONE] * 3 + [ErrorCode.POLICY_VIOLATION]
    # Who asks for the owner does not matter, and others are not touched.
    for_alice = {"owner_principal_type": "User", "owner_principal_name": "alice"}
    assert create(driver, BOB, **for_alice).error_code == ErrorCode.POLICY_VIOLATION
    assert create(driver, BOB).error_code == ErrorCode.NONE
    expire(driver, made[0].hmac, ALICE, NOW_MS)
    assert create(driver).error_code == ErrorCode.NONE
    assert len(tokens(driver)) == 4


def test_expired_tokens_make_room_and_never_pile_up(driver_of_three: CoreDriver) -> None:
    driver = driver_of_three
    for at_ms in range(NOW_MS, NOW_MS + 50, 2):
        assert create(driver, now_ms=at_ms, max_lifetime_ms=1).error_code == ErrorCode.NONE
        assert len(tokens(driver)) <= 3, "what has expired is gone before the sweep"
    assert create(driver, now_ms=NOW_MS + 50).error_code == ErrorCode.NONE


def test_who_has_many_gets_none_of_the_last_places(
    driver: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation_token_control, "MAX_TOKENS", 12)
    errors = [create(driver).error_code for _ in range(12)]
    assert Counter(errors) == {ErrorCode.NONE: 6, ErrorCode.POLICY_VIOLATION: 6}
    assert [create(driver, BOB).error_code for _ in range(4)] == [0, 0, 0, 44]
    for user in "cdef":
        made = create(driver, f"User:{user}").error_code
        assert made == (ErrorCode.NONE if user != "f" else ErrorCode.POLICY_VIOLATION)
    assert len(tokens(driver)) == 12


def test_expired_tokens_of_an_owner_make_room_in_a_full_cluster(
    driver: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner may have as many as there are places left, once its expired ones are gone."""
    monkeypatch.setattr(delegation_token_control, "MAX_TOKENS", 6)
    ends = [create(driver, max_lifetime_ms=1).error_code for _ in range(2)]
    ends += [create(driver).error_code, create(driver, BOB).error_code]
    assert ends == [0, 0, 0, 0]
    assert create(driver, now_ms=NOW_MS + 1).error_code == ErrorCode.POLICY_VIOLATION
    assert create(driver, now_ms=NOW_MS + 2).error_code == ErrorCode.NONE
    assert Counter(each.owner for each in tokens(driver).values()) == {ALICE: 2, BOB: 1}
    assert create(driver, now_ms=NOW_MS + 2).error_code == ErrorCode.NONE
    assert create(driver, now_ms=NOW_MS + 2).error_code == ErrorCode.POLICY_VIOLATION


def test_an_owner_that_is_refused_is_named_in_the_log(
    driver_of_three: CoreDriver, caplog: pytest.LogCaptureFixture
) -> None:
    request, image = CreateDelegationTokenRequest(renewers=[]), MetadataImage.EMPTY
    for _ in range(4):
        sender = Sender(ALICE, Authorizer())
        _, merge = at_once(permitted_parts.create_delegation_token(request, sender, image))
        at_once(merge(create(driver_of_three)))
    assert [each.getMessage() for each in caplog.records] == [
        "User:alice has as many delegation tokens as it may have"
    ]


def test_owners_are_counted_again_from_an_image(driver_of_three: CoreDriver) -> None:
    driver = driver_of_three
    made = [create(driver) for _ in range(3)]
    state = driver.core.state
    before = state.token_ids_by_owner
    state.reset(MetadataImage.EMPTY)
    assert state.token_ids_by_owner == {}
    delta = MetadataDelta(MetadataImage.EMPTY)
    for each in made:
        delta.replay(
            DelegationTokenRecord(
                owner=ALICE, requester=BOB, renewers=[], max_timestamp=1, token_id=each.token_id
            )
        )
    state.reset(delta.apply(MetadataImage.EMPTY.provenance))
    assert state.token_ids_by_owner == before
    # A token that changes hands is counted for its new owner; the last one leaves no entry.
    changed = made[0].token_id
    driver.append([(DelegationTokenRecord(owner=BOB, renewers=[], token_id=changed), 0)])
    assert {name: len(ids) for name, ids in state.token_ids_by_owner.items()} == {ALICE: 2, BOB: 1}
    driver.append([(RemoveDelegationTokenRecord(token_id=changed), 0)])
    assert state.token_ids_by_owner.keys() == {ALICE}


def test_tokens_are_in_snapshots(driver: CoreDriver) -> None:
    create(driver)
    create(driver, BOB, owner_principal_type="User", owner_principal_name="alice")
    image = driver.core.state.image
    delta = MetadataDelta(MetadataImage.EMPTY)
    for record, _version in image.write():
        delta.replay(record)
    assert delta.apply(image.provenance).delegation_tokens == image.delegation_tokens
    assert sorted(each.requester for each in tokens(driver).values()) == [ALICE, BOB]


def test_secrets_follow_the_tokens_there_are() -> None:
    secrets = TokenSecrets(Password("key"))
    token = DelegationToken(ALICE, ALICE, (), 0, 0, 0)
    first, second = {"a": token, "b": token}, {"b": token, "c": token}
    found = {each: secrets.hmac_of(each) for each in "abc"}
    assert len(set(found.values())) == 3
    assert [secrets.token_id_of(found[each], first) for each in "abc"] == ["a", "b", None]
    assert [secrets.token_id_of(found[each], second) for each in "abc"] == [None, "b", "c"]
    assert secrets.token_id_of(b"", second) is None
    assert TokenSecrets(None).token_id_of(found["b"], second) is None
