"""ACLs, quotas, SCRAM credentials, delegation tokens, static members, log directories."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest

from moldau.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    Admin,
    BrokerError,
    InvalidRequest,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
    TopicPartitionReplica,
)
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p13_leave_group as leave
from moldau.protocol.messages import p29_describe_acls as describe_acls
from moldau.protocol.messages import p30_create_acls as create_acls
from moldau.protocol.messages import p31_delete_acls as delete_acls
from moldau.protocol.messages import p34_alter_replica_log_dirs as log_dirs
from moldau.protocol.messages import p38_create_delegation_token as create_token
from moldau.protocol.messages import p39_renew_delegation_token as renew_token
from moldau.protocol.messages import p40_expire_delegation_token as expire_token
from moldau.protocol.messages import p41_describe_delegation_token as describe_tokens
from moldau.protocol.messages import p48_describe_client_quotas as describe_quotas
from moldau.protocol.messages import p49_alter_client_quotas as alter_quotas
from moldau.protocol.messages import p50_describe_user_scram_credentials as describe_scram
from moldau.protocol.messages import p51_alter_user_scram_credentials as alter_scram
from tests.unit.client.cluster.test_coordinators import coordinators
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

READ = AclBinding(AclResourceType.TOPIC, "t", "User:alice", AclOperation.READ)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.script(ApiKey.FIND_COORDINATOR, coordinators(lambda _: scripted))
        yield scripted


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address, retry_backoff_ms=1, default_api_timeout_ms=5_000) as client:
        yield client


async def test_acls_are_described(admin: Admin, broker: ScriptedBroker):
    acl = describe_acls.AclDescription(
        principal="User:alice", host="*", operation=3, permission_type=3
    )
    newer = describe_acls.AclDescription(
        principal="User:bob", host="h", operation=99, permission_type=2
    )
    broker.script(
        ApiKey.DESCRIBE_ACLS,
        lambda _: describe_acls.DescribeAclsResponse(
            resources=[
                describe_acls.DescribeAclsResource(
                    resource_type=2, resource_name="t", pattern_type=3, acls=[acl, newer]
                )
            ]
        ),
    )
    found = await admin.describe_acls(
        AclFilter(AclResourceType.TOPIC, "t", pattern_type=AclPatternType.MATCH)
    )
    assert found == [
        READ,
        AclBinding(AclResourceType.TOPIC, "t", "User:bob", 99, AclPermission.DENY, "h"),
    ]
    (asked,) = broker.requests_of(describe_acls.DescribeAclsRequest)
    assert (asked.resource_type_filter, asked.resource_name_filter) == (2, "t")
    assert (asked.pattern_type_filter, asked.operation, asked.principal_filter) == (2, 1, None)


async def test_without_an_authorizer(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.DESCRIBE_ACLS,
        lambda _: describe_acls.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED),
    )
    with pytest.raises(BrokerError, match="without an authorizer") as caught:
        await admin.describe_acls()
    assert caught.value.code is ErrorCode.SECURITY_DISABLED


async def test_acls_are_created_after_the_controller_has_moved(
    admin: Admin, broker: ScriptedBroker
):
    broker.script(
        ApiKey.CREATE_ACLS,
        lambda _: create_acls.CreateAclsResponse(
            results=[create_acls.AclCreationResult(error_code=ErrorCode.NOT_CONTROLLER)]
        ),
        lambda _: create_acls.CreateAclsResponse(results=[create_acls.AclCreationResult()]),
    )
    await admin.create_acls([READ])
    asked = broker.requests_of(create_acls.CreateAclsRequest)
    assert len(asked) == 2
    (made,) = asked[1].creations
    assert (made.resource_type, made.resource_pattern_type, made.operation) == (2, 3, 3)
    with pytest.raises(InvalidRequest, match="for filters"):
        await admin.create_acls([AclBinding(AclResourceType.ANY, "t", "User:a", AclOperation.ALL)])
    assert len(broker.requests_of(create_acls.CreateAclsRequest)) == 2


async def test_deleted_acls_are_returned(admin: Admin, broker: ScriptedBroker):
    match = delete_acls.DeleteAclsMatchingAcl(
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    broker.script(
        ApiKey.DELETE_ACLS,
        lambda _: delete_acls.DeleteAclsResponse(
            filter_results=[delete_acls.DeleteAclsFilterResult(matching_acls=[match])]
        ),
        lambda _: delete_acls.DeleteAclsResponse(
            filter_results=[
                delete_acls.DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST)
            ]
        ),
    )
    assert await admin.delete_acls([AclFilter(principal="User:alice")]) == [READ]
    with pytest.raises(InvalidRequest):
        await admin.delete_acls([AclFilter()])


async def test_quotas(admin: Admin, broker: ScriptedBroker):
    entity = describe_quotas.EntityData(entity_type="user", entity_name=None)
    broker.script(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        lambda _: describe_quotas.DescribeClientQuotasResponse(
            entries=[
                describe_quotas.EntryData(
                    entity=[entity],
                    values=[describe_quotas.ValueData(key="producer_byte_rate", value=2.5)],
                )
            ]
        ),
    )
    told = await admin.describe_client_quotas({"user": None}, any_of=["client-id"], strict=True)
    assert told == {(("user", None),): {"producer_byte_rate": 2.5}}
    (asked,) = broker.requests_of(describe_quotas.DescribeClientQuotasRequest)
    assert [(each.entity_type, each.match_type, each.match) for each in asked.components] == [
        ("user", 1, None),
        ("client-id", 2, None),
    ]
    assert asked.strict
    broker.script(
        ApiKey.ALTER_CLIENT_QUOTAS,
        lambda _: alter_quotas.AlterClientQuotasResponse(
            entries=[
                alter_quotas.EntryDataResponse(
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message="no such key",
                    entity=[describe_quotas.EntityData(entity_type="user", entity_name="a")],
                )
            ]
        ),
    )
    alice = (("user", "a"),)
    outcome = await admin.alter_client_quotas({alice: {"x": 1.0, "y": None}}, validate_only=True)
    assert isinstance(outcome[alice], InvalidRequest)
    (sent,) = broker.requests_of(alter_quotas.AlterClientQuotasRequest)
    assert [(op.key, op.value, op.remove) for op in sent.entries[0].ops] == [
        ("x", 1.0, False),
        ("y", 0.0, True),
    ]
    assert sent.validate_only


async def test_scram_credentials_are_salted_here(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        lambda _: alter_scram.AlterUserScramCredentialsResponse(
            results=[
                alter_scram.AlterUserScramCredentialsResult(user="a"),
                alter_scram.AlterUserScramCredentialsResult(
                    user="b", error_code=ErrorCode.RESOURCE_NOT_FOUND
                ),
            ]
        ),
    )
    setting = ScramUpsertion("a", "pencil", ScramMechanism.SCRAM_SHA_256, 4096, b"salt")
    assert "pencil" not in repr(setting)
    outcome = await admin.alter_user_scram_credentials([setting, ScramDeletion("b")])
    assert outcome["a"] is None
    assert outcome["b"] is not None
    assert outcome["b"].code is ErrorCode.RESOURCE_NOT_FOUND
    (sent,) = broker.requests_of(alter_scram.AlterUserScramCredentialsRequest)
    expected = hashlib.pbkdf2_hmac("sha256", b"pencil", b"salt", 4096)
    assert bytes(sent.upsertions[0].salted_password) == expected
    assert (sent.deletions[0].name, sent.deletions[0].mechanism) == ("b", 2)
    with pytest.raises(InvalidRequest, match="from 4096 to 16384"):
        await admin.alter_user_scram_credentials([ScramUpsertion("a", "x", iterations=1)])
    with pytest.raises(InvalidRequest, match="a password are needed"):
        await admin.alter_user_scram_credentials([ScramUpsertion("a", "")])


async def test_scram_credentials_are_described(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        lambda _: describe_scram.DescribeUserScramCredentialsResponse(
            results=[
                describe_scram.DescribeUserScramCredentialsResult(
                    user="a",
                    credential_infos=[describe_scram.CredentialInfo(mechanism=2, iterations=4096)],
                ),
                describe_scram.DescribeUserScramCredentialsResult(
                    user="b", error_code=ErrorCode.RESOURCE_NOT_FOUND
                ),
            ]
        ),
    )
    told = await admin.describe_user_scram_credentials(["a", "b"])
    assert isinstance(told["a"], list)
    assert (told["a"][0].mechanism, told["a"][0].iterations) == (
        ScramMechanism.SCRAM_SHA_512,
        4096,
    )
    assert isinstance(told["b"], BrokerError)


async def test_delegation_tokens(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.CREATE_DELEGATION_TOKEN,
        lambda _: create_token.CreateDelegationTokenResponse(
            principal_type="User",
            principal_name="alice",
            token_id="id",
            hmac=b"mac",
            issue_timestamp_ms=1,
            expiry_timestamp_ms=2,
            max_timestamp_ms=3,
        ),
    )
    token = await admin.create_delegation_token(renewers=["User:bob"], max_lifetime_ms=9)
    assert (token.token_id, token.hmac, token.owner, token.renewers) == (
        "id",
        b"mac",
        "User:alice",
        ("User:bob",),
    )
    assert (token.issued_at_ms, token.expires_at_ms, token.max_lifetime_end_ms) == (1, 2, 3)
    assert "mac" not in repr(token)
    broker.script(
        ApiKey.RENEW_DELEGATION_TOKEN,
        lambda _: renew_token.RenewDelegationTokenResponse(expiry_timestamp_ms=7),
    )
    broker.script(
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        lambda _: expire_token.ExpireDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        ),
    )
    assert await admin.renew_delegation_token(b"mac") == 7
    with pytest.raises(BrokerError, match="DELEGATION_TOKEN_NOT_FOUND"):
        await admin.expire_delegation_token(b"mac")
    told = describe_tokens.DescribedDelegationToken(
        principal_type="User", principal_name="alice", token_id="id", hmac=b"mac"
    )
    broker.script(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        lambda _: describe_tokens.DescribeDelegationTokenResponse(tokens=[told]),
    )
    assert [each.owner for each in await admin.describe_delegation_tokens(["User:alice"])] == [
        "User:alice"
    ]
    with pytest.raises(InvalidRequest, match="look like User:alice"):
        await admin.describe_delegation_tokens(["alice"])


async def test_static_members_are_removed(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.LEAVE_GROUP,
        lambda _: leave.LeaveGroupResponse(
            members=[
                leave.MemberResponse(member_id="", group_instance_id="one"),
                leave.MemberResponse(
                    member_id="", group_instance_id="two", error_code=ErrorCode.UNKNOWN_MEMBER_ID
                ),
            ]
        ),
    )
    outcome = await admin.remove_group_members("g", ["one", "two"], reason="moved")
    assert outcome["one"] is None
    assert outcome["two"] is not None
    assert outcome["two"].code is ErrorCode.UNKNOWN_MEMBER_ID
    (sent,) = broker.requests_of(leave.LeaveGroupRequest)
    assert [(each.group_instance_id, each.reason) for each in sent.members] == [
        ("one", "moved"),
        ("two", "moved"),
    ]


async def test_replicas_move_between_directories(admin: Admin, broker: ScriptedBroker):
    def answer(
        request: log_dirs.AlterReplicaLogDirsRequest,
    ) -> log_dirs.AlterReplicaLogDirsResponse:
        results = []
        for index, code in ((0, ErrorCode.NONE), (1, ErrorCode.LOG_DIR_NOT_FOUND)):
            entry = log_dirs.AlterReplicaLogDirPartitionResult(
                partition_index=index, error_code=code
            )
            results.append(
                log_dirs.AlterReplicaLogDirTopicResult(topic_name="t", partitions=[entry])
            )
        return log_dirs.AlterReplicaLogDirsResponse(results=results)

    broker.script(ApiKey.ALTER_REPLICA_LOG_DIRS, answer)
    zero, one, absent = (TopicPartitionReplica("t", index, NODE_ID) for index in (0, 1, 2))
    outcome = await admin.alter_replica_log_dirs({zero: "/a", one: "/b", absent: "/a"})
    assert outcome[zero] is True
    assert outcome[one].code is ErrorCode.LOG_DIR_NOT_FOUND
    assert outcome[absent].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (sent,) = broker.requests_of(log_dirs.AlterReplicaLogDirsRequest)
    assert {each.path: each.topics[0].partitions for each in sent.dirs} == {"/a": [0, 2], "/b": [1]}
