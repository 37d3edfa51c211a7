"""SCRAM credentials at the controller: set, deleted, refused, described, kept in snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.controller.core.result import MAX_RECORDS_PER_REQUEST
from moldau.metadata.descriptions import described_scram
from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.metadata.image.metadata_image import MetadataDelta
from moldau.metadata.image.security import ScramKey
from moldau.metadata.scram_secret import (
    SECRET_KEY,
    SECRET_RESOURCE,
    is_scram_secret,
    scram_secret,
)
from moldau.metadata.steps import at_once
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as legacy
from moldau.protocol.messages.p33_alter_configs import AlterConfigsRequest
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.p50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from moldau.protocol.messages.p51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.metadata_records import EndTransactionRecord, UserScramCredentialRecord
from moldau.protocol.scram import salted_password, scram_keys
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
    # What is wrong with its first alteration is reported.
    assert alter(driver, deletion("x"), upsertion("x")) == {"x": ErrorCode.RESOURCE_NOT_FOUND}
    assert stored(driver) == {ScramKey("alice", SHA_256)}


def test_reserved_names_get_no_credential_and_lose_the_one_they_have() -> None:
    driver = CoreDriver(**{"moldau.node.principals": "User:CN=*,OU=nodes"})
    refused = ("nodes", "ANONYMOUS", "CN=broker-1,OU=nodes")
    outcome = alter(driver, *map(upsertion, refused), upsertion("CN=broker-1,OU=clients"))
    assert outcome == {
        **dict.fromkeys(refused, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        "CN=broker-1,OU=clients": 0,
    }
    core = driver.core
    core.state.settings = core.state.settings._replace(own_names=frozenset({"alice"}))
    assert alter(driver, upsertion()) == {"alice": ErrorCode.UNACCEPTABLE_CREDENTIAL}
    keys = scram_keys("SCRAM-SHA-256", b"salted", SALT, 4_096)
    driver.append([(UserScramCredentialRecord(name="nodes", mechanism=1, **keys._asdict()), 0)])
    assert alter(driver, deletion("nodes")) == {"nodes": 0}


def test_too_many_at_once(driver: CoreDriver) -> None:
    names = [f"user-{number}" for number in range(MAX_RECORDS_PER_REQUEST + 1)]
    outcome = alter(driver, *(deletion(name) for name in names))
    assert set(outcome.values()) == {ErrorCode.POLICY_VIOLATION}


def test_below_the_level_that_has_records_for_them() -> None:
    driver = CoreDriver(release="3.5-IV1")
    assert alter(driver, upsertion(), deletion("bob")) == dict.fromkeys(
        ("alice", "bob"), ErrorCode.UNSUPPORTED_VERSION
    )
    assert alter(CoreDriver(release="3.5-IV2"), upsertion()) == {"alice": ErrorCode.NONE}


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


# -- the secret behind answers about unknown users -----------------------------------------------


def secret_of(driver: CoreDriver) -> str | None:
    return scram_secret(driver.core.state.image.configs)


def test_the_first_credential_brings_the_secret_and_no_other_changes_it() -> None:
    driver = CoreDriver(scram_secret="drawn")
    assert secret_of(driver) is None, "a cluster without users needs none"
    alter(driver, deletion())
    assert secret_of(driver) is None
    alter(driver, upsertion())
    assert secret_of(driver) == "drawn"
    alter(driver, upsertion("bob"))
    assert not any(map(is_scram_secret, driver.appended))
    alter(driver, deletion(), deletion("bob"))
    assert secret_of(driver) == "drawn"


def test_a_cluster_formatted_with_users_has_a_secret_from_its_first_batch_on() -> None:
    keys = scram_keys("SCRAM-SHA-256", b"salted", SALT, 4_096)
    formatted = UserScramCredentialRecord(name="admin", mechanism=SHA_256, **keys._asdict())
    driver = CoreDriver(scram_secret="drawn", formatted=[(formatted, 0)])
    assert secret_of(driver) == "drawn"
    assert isinstance(driver.appended[-1], EndTransactionRecord), "whole or not at all"


def test_an_older_cluster_with_users_gets_one_from_its_next_active_controller() -> None:
    old = CoreDriver()
    alter(old, upsertion())
    assert secret_of(old) is None
    core = old.core
    core.committed_image = core.state.image
    core.deactivate()
    core.state.settings = core.state.settings._replace(scram_secret="drawn")
    old.append(core.activate(2, [], monotonic_ms=0.0))
    assert secret_of(old) == "drawn"
    core.committed_image = core.state.image
    core.deactivate()
    assert core.activate(3, [], monotonic_ms=0.0) == []


def test_no_request_describes_or_alters_the_secret() -> None:
    driver = CoreDriver(scram_secret="drawn")
    alter(driver, upsertion())
    resource = AlterConfigsResource(
        resource_type=ConfigResourceType.BROKER,
        resource_name=SECRET_RESOURCE,
        configs=[AlterableConfig(name=SECRET_KEY, config_operation=1, value=None)],
    )
    response = driver.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == ErrorCode.INVALID_REQUEST
    for name in ("", SECRET_RESOURCE):
        whole = AlterConfigsRequest(
            resources=[legacy.AlterConfigsResource(resource_type=4, resource_name=name)]
        )
        driver.ask(whole)
        assert secret_of(driver) == "drawn"
