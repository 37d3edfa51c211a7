"""Delegation tokens on a real node: made, used, renewed, ended, and by whom (KIP-48, KIP-373)."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    AuthenticationFailed,
    BrokerError,
    DelegationToken,
    ScramMechanism,
    ScramUpsertion,
)
from moldau.client import Admin as AsyncAdmin
from moldau.client.sync import Admin
from tests.kit.waiting import until, until_async
from tests.system.processes import run_cli
from tests.system.security.nodes import AUTHORIZER, PASSWORD, SCRAM_MODULE, SecuredNode

SECRET_KEY = "the-key-of-all-nodes"
ALICE = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": PASSWORD}
BOB = {"sasl_mechanism": "PLAIN", "sasl_username": "bob", "sasl_password": "b-secret"}
CAROL = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "carol", "sasl_password": "c-secret"}


def changed(**more: str) -> dict[str, str]:
    return {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice",
        "delegation.token.secret.key": SECRET_KEY,
        "delegation.token.expiry.check.interval.ms": "100",
        **more,
    }


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    """With an authorizer, whose super users are alice and the node itself."""
    with SecuredNode(tmp_path_factory.mktemp("delegated"), changed()) as running:
        with Admin(running.address("PLAINTEXT")) as admin:
            carol = ScramUpsertion("carol", "c-secret", ScramMechanism.SCRAM_SHA_256)
            assert admin.alter_user_scram_credentials([carol]) == {"carol": None}
            admin.create_acls(
                [
                    AclBinding(AclResourceType.CLUSTER, "kafka-cluster", "User:carol", operation)
                    for operation in (AclOperation.DESCRIBE, AclOperation.CREATE)
                ]
            )
        yield running


def admin_of(node: SecuredNode, listener: str = "SASL_PLAINTEXT", **settings: Any) -> Admin:
    return Admin(node.address(listener), security_protocol=listener, **settings)


def secret_of(token: DelegationToken) -> str:
    return b64encode(token.hmac).decode()


def by_token(token: DelegationToken, mechanism: str = "SCRAM-SHA-256", **changed: str) -> Any:
    options = {
        "username": token.token_id,
        "password": secret_of(token),
        "tokenauth": "true",
        **changed,
    }
    written = " ".join(f'{name}="{value}"' for name, value in options.items())
    return {"sasl_mechanism": mechanism, "sasl_jaas_config": f"{SCRAM_MODULE} required {written};"}


def created(node: SecuredNode, who: dict[str, str] | None = None, **wanted: Any) -> DelegationToken:
    with admin_of(node, **(who or CAROL)) as admin:
        return admin.create_delegation_token(**wanted)


def comes_in(node: SecuredNode, settings: Any) -> bool:
    try:
        with admin_of(node, **settings) as admin:
            return bool(admin.describe_cluster().brokers)
    except AuthenticationFailed:
        return False


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_s_client_is_its_owner(node: SecuredNode, mechanism: str) -> None:
    token = created(node)
    assert (token.owner, token.requester) == ("User:carol", "User:carol")
    assert token.issued_at_ms < token.expires_at_ms <= token.max_lifetime_end_ms
    with admin_of(node, **by_token(token, mechanism)) as admin:
        # What carol may do, and nothing that she may not.
        assert admin.describe_cluster().brokers
        with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
            admin.describe_client_quotas({})
    assert secret_of(token) not in node.log()
    assert SECRET_KEY not in node.log()


def test_what_is_no_token_is_refused_as_a_wrong_password_is(node: SecuredNode) -> None:
    token = created(node)
    for wrong in (
        by_token(token, password="wrong"),
        by_token(token, username="no-such-token"),
        by_token(token, tokenauth="false"),
        by_token(token, username="carol", password="c-secret"),
    ):
        assert not comes_in(node, wrong)


def test_with_a_token_nothing_can_be_asked_about_tokens(node: SecuredNode) -> None:
    token = created(node)
    with admin_of(node, **by_token(token)) as admin:
        _check_not_allowed(admin, token)
    # A client that has not said who it is has no tokens either.
    with Admin(node.address("PLAINTEXT")) as admin:
        _check_not_allowed(admin, token)
    with admin_of(node, "SSL", **node.trust) as admin:
        _check_not_allowed(admin, token)


def _check_not_allowed(admin: Admin, token: DelegationToken) -> None:
    for ask in (
        admin.create_delegation_token,
        admin.describe_delegation_tokens,
        lambda: admin.renew_delegation_token(token.hmac),
        lambda: admin.expire_delegation_token(token.hmac),
    ):
        with pytest.raises(BrokerError, match="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"):
            ask()


def test_for_others_one_needs_the_permission(node: SecuredNode) -> None:
    refused = pytest.raises(BrokerError, match="DELEGATION_TOKEN_AUTHORIZATION_FAILED")
    with admin_of(node, **CAROL) as admin, refused:
        admin.create_delegation_token(owner="User:dave")
    binding = AclBinding(
        AclResourceType.USER, "User:dave", "User:carol", AclOperation.CREATE_TOKENS
    )
    with Admin(node.address("PLAINTEXT")) as admin:
        admin.create_acls([binding])
    token = created(node, owner="User:dave")
    assert (token.owner, token.requester) == ("User:dave", "User:carol")
    # She has made it and sees it, and neither owns nor may renew it.
    with admin_of(node, **CAROL) as admin:
        assert token.token_id in ids(admin)
        with pytest.raises(BrokerError, match="DELEGATION_TOKEN_OWNER_MISMATCH"):
            admin.renew_delegation_token(token.hmac)
    with admin_of(node, **ALICE) as admin:
        assert token.token_id in ids(admin)
        assert token.token_id in ids(admin, ["User:dave"])
        assert token.token_id in ids(admin, ["User:carol"])
        assert token.token_id not in ids(admin, ["User:erin"])
        assert ids(admin, []) == set()


def ids(admin: Admin, owners: list[str] | None = None) -> set[str]:
    return {each.token_id for each in admin.describe_delegation_tokens(owners)}


def test_tokens_that_a_list_leaves_out_are_logged_as_in_kafka(node: SecuredNode) -> None:
    token = created(node)
    with admin_of(node, **BOB) as admin:
        assert token.token_id not in ids(admin)
    asked = [
        line
        for line in node.log().splitlines()
        if "Principal = User:bob is Denied" in line and "request = DescribeDelegationToken" in line
    ]
    of_token = [line for line in asked if f":LITERAL:{token.token_id} " in line]
    assert len(of_token) == 1
    assert "operation = DESCRIBE from" in of_token[0]
    assert any("operation = DESCRIBE_TOKENS " in line and ":carol " in line for line in asked)


def test_renewers_prolong_up_to_the_end(node: SecuredNode) -> None:
    token = created(node, renewers=["User:bob"], max_lifetime_ms=3_600_000)
    assert token.max_lifetime_end_ms == token.issued_at_ms + 3_600_000
    with admin_of(node, **BOB) as admin:
        [seen] = admin.describe_delegation_tokens()
        assert (seen.token_id, seen.hmac) == (token.token_id, token.hmac)
        assert seen.renewers == ("User:bob",)
        soon = admin.expire_delegation_token(token.hmac, expiry_period_ms=1_800_000)
        assert soon < token.expires_at_ms
        assert admin.renew_delegation_token(token.hmac) == token.max_lifetime_end_ms
        with pytest.raises(BrokerError, match="DELEGATION_TOKEN_NOT_FOUND"):
            admin.renew_delegation_token(b"no such token")
        assert admin.expire_delegation_token(token.hmac) <= time.time() * 1_000 + 10_000
        assert ids(admin) == set()
    assert not comes_in(node, by_token(token))


async def test_a_session_ends_with_its_token(node: SecuredNode) -> None:
    token = created(node, max_lifetime_ms=10_000)
    async with AsyncAdmin(
        node.address("SASL_PLAINTEXT"), security_protocol="SASL_PLAINTEXT", **by_token(token)
    ) as admin:

        async def has_ended() -> bool:
            try:
                await admin.describe_cluster()
            except AuthenticationFailed:
                return True
            return False

        assert (await admin.describe_cluster()).brokers
        await until_async(has_ended, what="the end of the session")
    with admin_of(node, **CAROL) as blocking:
        until(lambda: token.token_id not in ids(blocking), what="the token is swept")


async def test_first_logins_of_many_tokens_at_once(node: SecuredNode) -> None:
    """Keys are made beside the loop, one token after the other: right and wrong logins wait."""
    with admin_of(node, **CAROL) as admin:
        tokens = [admin.create_delegation_token() for _ in range(20)]
    address = node.address("SASL_PLAINTEXT")

    async def log_in(settings: Any) -> bool:
        secured = {"security_protocol": "SASL_PLAINTEXT", **settings}
        try:
            async with AsyncAdmin(address, **secured) as admin:
                return bool((await admin.describe_cluster()).brokers)
        except AuthenticationFailed:
            return False

    wanted = [by_token(token, "SCRAM-SHA-512") for token in tokens for _ in range(2)]
    wanted += [by_token(token, "SCRAM-SHA-512", password="wrong") for token in tokens[:3]]
    came_in = await asyncio.gather(*map(log_in, wanted))
    assert came_in == [True] * 40 + [False] * 3


def test_tokens_outlive_the_node_and_its_snapshots(tmp_path: Path) -> None:
    with SecuredNode(
        tmp_path, changed(**{"metadata.log.max.record.bytes.between.snapshots": "100"})
    ) as running:
        token = created(running, ALICE)
        running.process.stop()
        running.process.start()
        running.process.wait_ready()
        assert comes_in(running, by_token(token))
        with admin_of(running, **ALICE) as admin:
            [seen] = admin.describe_delegation_tokens()
            assert seen == token


def test_without_a_secret_key_there_are_none(tmp_path: Path) -> None:
    without = {
        key: value for key, value in changed().items() if key != "delegation.token.secret.key"
    }
    with SecuredNode(tmp_path, without) as running, admin_of(running, **ALICE) as admin:
        for ask in (
            admin.create_delegation_token,
            admin.describe_delegation_tokens,
            lambda: admin.renew_delegation_token(b"x"),
            lambda: admin.expire_delegation_token(b"x"),
        ):
            with pytest.raises(BrokerError, match="DELEGATION_TOKEN_AUTH_DISABLED"):
                ask()


def test_the_command(node: SecuredNode, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=alice\n"
        f"sasl.password={PASSWORD}\n"
    )
    where = ("-b", node.address("SASL_PLAINTEXT"), "--command-config", settings)
    made = run_cli("tokens", "create", "--renewer", "User:bob", "--json", *where)
    assert made.status == 0, made.errors
    token = json.loads(made.output)
    assert (token["owner"], token["renewers"]) == ("User:alice", "User:bob")
    jaas = (
        f'{SCRAM_MODULE} required username="{token["id"]}" password="{token["secret"]}" '
        'tokenauth="true";'
    )
    assert comes_in(node, {"sasl_mechanism": "SCRAM-SHA-256", "sasl_jaas_config": jaas})
    listed = run_cli("tokens", "list", "--owner", "User:alice", *where)
    assert token["id"] in listed.output
    assert token["secret"] not in listed.output
    renewed = run_cli("tokens", "renew", token["id"], "--period-ms", "60000", *where)
    assert renewed.output.startswith(f"token {token['id']} lasts until 20")
    asked = run_cli("tokens", "expire", token["id"], *where)
    assert (asked.status, f"end token {token['id']} of User:" in asked.complaint) == (2, True)
    wrong = run_cli("tokens", "expire", token["id"][:-1], "--yes", *where)
    assert (wrong.status, f"did you mean {token['id']}?" in wrong.complaint) == (1, True)
    ended = run_cli("tokens", "expire", token["id"], "--yes", *where)
    assert ended.output == f"token {token['id']} has ended\n"
    gone = run_cli("tokens", "renew", token["id"], *where)
    assert (gone.status, gone.output) == (1, "")
    assert "there is no token" in gone.errors
    wrong = run_cli("tokens", "create", "--renewer", "bob", *where)
    assert wrong.status == 2
    shown = run_cli("tokens", "create", *where)
    assert shown.output.splitlines()[1].startswith("its secret: ")
