"""SCRAM credentials at the controller: set, deleted, refused, described, kept in snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.controller.core.result import MAX_RECORDS_PER_REQUEST
from moldau.metadata.image import MetadataImage
from moldau.metadata.image.metadata_image import MetadataDelta
from moldau.metadata.image.security import ScramKey
from moldau.metadata.steps import at_once
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from moldau.protocol.messages.p51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.scram import salted_password, scram_keys
from moldau.server.described_scram import described_scram
from tests.unit.metadata.builders import CoreDriver

SALT = b"some salt"
SHA_256, SHA_512 = 1, 2


@pytest.fixture
def driver() -> CoreDriver:
    return CoreDriver()


def upsertion(name: str = "alice", mechanism: int = SHA_256, **fields: Any) -> Any:
    salted = salted_password("SCRAM-SHA-256", "a-secret", SALT, 4_096)
    values = {"iterations": 4_096, "salt": SALT, "salted_password": salted, **fields}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, **values)


def deletion(name: str = "alice", mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(driver: CoreDriver, *alterations: Any) -> dict[str, int]:
    kinds: dict[type, list[Any]] = {ScramCredentialDeletion: [], ScramCredentialUpsertion: []}
    for each in alterations:
        kinds[type(each)].append(each)
    response = driver.ask(
        AlterUserScramCredentialsRequest(
            deletions=kinds[ScramCredentialDeletion], upsertions=kinds[ScramCredentialUpsertion]
        )
    )
    for result in response.results:
        assert (result.error_code == 0) == (result.error_message is None)
    assert len({each.user for each in response.results}) == len(response.results)
    return {each.user: each.error_code for each in response.results}


def stored(driver: CoreDriver) -> set[ScramKey]:
    return set(driver.core.state.image.scram.credentials)


def test_credentials_are_set_replaced_and_deleted(driver: CoreDriver) -> None:
    assert alter(driver, upsertion(), upsertion("bob", SHA_512, iterations=16_384)) == {
        "alice": 0,
        "bob": 0,
    }
    assert stored(driver) == {ScramKey("alice", SHA_256), ScramKey("bob", SHA_512)}
    found = driver.core.state.image.scram.credentials[ScramKey("alice", SHA_256)]
    salted = salted_password("SCRAM-SHA-256", "a-secret", SALT, 4_096)
    keys = scram_keys("SCRAM-SHA-256", salted, SALT, 4_096)
    assert (found.salt, found.stored_key, found.server_key, found.iterations) == keys
    assert alter(driver, upsertion(salt=b"another")) == {"alice": 0}
    changed = driver.core.state.image.scram.credentials[ScramKey("alice", SHA_256)]
    assert changed.salt == b"another"
    assert alter(driver, deletion(), upsertion("carol")) == {"alice": 0, "carol": 0}
    assert stored(driver) == {ScramKey("bob", SHA_512), ScramKey("carol", SHA_256)}
    assert "salted" not in repr(changed)
    assert repr(found.stored_key) not in repr(found)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (upsertion("bad", iterations=4_095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bad", iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bad", iterations=-1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bad", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("bad", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (deletion("bad", -1), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (deletion("bad"), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_what_is_refused_is_refused_alone(driver: CoreDriver, bad: Any, error: ErrorCode) -> None:
    assert alter(driver, bad, upsertion("good")) == {"bad": error, "good": 0}
    assert stored(driver) == {ScramKey("good", SHA_256)}


def test_a_user_needs_a_name(driver: CoreDriver) -> None:
    assert alter(driver, upsertion("")) == {"": ErrorCode.UNACCEPTABLE_CREDENTIAL}
    assert not stored(driver)


def test_a_user_is_altered_once_in_a_request(driver: CoreDriver) -> None:
    alter(driver, upsertion(), upsertion("bob"))
    twice = ErrorCode.DUPLICATE_RESOURCE
    assert alter(driver, upsertion(), upsertion(mechanism=SHA_512)) == {"alice": twice}
    assert alter(driver, deletion(), upsertion()) == {"alice": twice}
    assert alter(driver, deletion(), deletion(), upsertion(), deletion("bob")) == {
        "alice": twice,
        "bob": 0,
    }
    # What is wrong with its first alteration is told.
    assert alter(driver, deletion("x"), upsertion("x")) == {"x": ErrorCode.RESOURCE_NOT_FOUND}
    assert stored(driver) == {ScramKey("alice", SHA_256)}


def test_too_many_at_once(driver: CoreDriver) -> None:
    names = [f"user-{number}" for number in range(MAX_RECORDS_PER_REQUEST + 1)]
    outcome = alter(driver, *(deletion(name) for name in names))
    assert set(outcome.values()) == {ErrorCode.POLICY_VIOLATION}


def test_below_the_level_that_has_records_for_them() -> None:
    driver = CoreDriver(release="3.5-IV1")
    assert alter(driver, upsertion(), deletion("bob")) == dict.fromkeys(
        ("alice", "bob"), ErrorCode.UNSUPPORTED_VERSION
    )


def test_credentials_are_in_snapshots(driver: CoreDriver) -> None:
    alter(driver, upsertion(), upsertion("bob", SHA_512))
    image = driver.core.state.image
    delta = MetadataDelta(MetadataImage.EMPTY)
    for record, version in image.write():
        delta.replay(type(record).decode(record.to_bytes(version), version)[0])
    assert delta.apply(image.provenance).scram == image.scram


def described(driver: CoreDriver, *names: str, all_users: bool = False) -> dict[str, Any]:
    users = None if all_users else [UserName(name=name) for name in names]
    request = DescribeUserScramCredentialsRequest(users=users)
    response = at_once(described_scram(driver.core.state.image.scram, request))
    assert (response.error_code, response.error_message) == (0, "")
    assert len({each.user for each in response.results}) == len(response.results)
    return {
        each.user: each.error_code
        or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in response.results
    }


def test_credentials_are_described_without_their_keys(driver: CoreDriver) -> None:
    assert described(driver, all_users=True) == {}
    alter(driver, upsertion(), upsertion("bob", SHA_512, iterations=8_192))
    alter(driver, upsertion(mechanism=SHA_512))
    everything = {"alice": [(1, 4_096), (2, 4_096)], "bob": [(2, 8_192)]}
    assert described(driver, all_users=True) == described(driver) == everything
    assert described(driver, "bob", "carol", "alice", "alice") == {
        "bob": [(2, 8_192)],
        "carol": ErrorCode.RESOURCE_NOT_FOUND,
        "alice": ErrorCode.DUPLICATE_RESOURCE,
    }
