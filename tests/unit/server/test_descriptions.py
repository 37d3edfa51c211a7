"""What tokens, entries, credentials, configurations and quotas are shown, in how many steps."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.broker.api.p41_describe_delegation_token import described_tokens
from moldau.broker.api.p48_describe_client_quotas import described_quotas
from moldau.config import NodeConfig
from moldau.config.describe import ConfigSource, ConfigSynonym, ConfigType, DescribedConfig
from moldau.config.values import Password
from moldau.metadata import descriptions
from moldau.metadata.descriptions import (
    DescribedEntries,
    config_entry,
    described_acls,
    described_scram,
)
from moldau.metadata.image import ConfigResourceType, ConfigsImage
from moldau.metadata.image.configs import ClientQuotasImage
from moldau.metadata.image.security import (
    AccessControlEntry,
    AclsImage,
    DelegationToken,
    ScramCredential,
    ScramImage,
    ScramKey,
)
from moldau.metadata.token_secrets import TokenSecrets
from moldau.protocol.access_control import (
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p29_describe_acls as p29
from moldau.protocol.messages import p32_describe_configs as p32
from moldau.protocol.messages import p33_alter_configs as p33
from moldau.protocol.messages import p41_describe_delegation_token as p41
from moldau.protocol.messages import p44_incremental_alter_configs as p44
from moldau.protocol.messages import p48_describe_client_quotas as p48
from moldau.protocol.messages import p50_describe_user_scram_credentials as p50
from moldau.protocol.messages.p38_create_delegation_token import TokenPrincipal
from moldau.server.authorizer import Authorizer
from moldau.server.config_permissions import config_permission, may_change_stores
from moldau.server.request import Sender
from moldau.server.standard_authorizer import StandardAuthorizer

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def finished(steps: Any) -> tuple[int, Any]:
    """How many steps there were, and the result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def config(**more: str) -> NodeConfig:
    return NodeConfig(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )


# -- delegation tokens ----------------------------------------------------------------------------

TOKENS = {
    "t-own": DelegationToken("User:alice", "User:alice", (), 1, 3, 2),
    "t-asked": DelegationToken("User:bob", "User:alice", (), 1, 3, 2),
    "t-renews": DelegationToken("User:carol", "User:bob", ("User:dave", "User:alice"), 4, 6, 5),
    "t-other": DelegationToken("User:bob", "User:carol", ("User:dave",), 1, 3, 2),
}


def told(
    *entries: AccessControlEntry, owners: list[str] | None = None, principal: str = "User:alice"
) -> tuple[int, list[p41.DescribedDelegationToken]]:
    """The steps, and the tokens that a principal is shown."""
    authorizer = StandardAuthorizer((), allows_unmentioned=False)
    authorizer.change({uuid.uuid4(): each for each in entries})
    named = None
    if owners is not None:
        named = [
            TokenPrincipal(
                principal_type=each.partition(":")[0], principal_name=each.partition(":")[2]
            )
            for each in owners
        ]
    request = p41.DescribeDelegationTokenRequest(owners=named)
    secrets = TokenSecrets(Password("secret"))
    sender = Sender(principal, authorizer)
    count, response = finished(described_tokens(TOKENS, secrets, sender, request))
    for each in response.tokens:
        assert each.hmac == secrets.hmac_of(each.token_id)
    return count, response.tokens


def ids(answer: tuple[int, list[p41.DescribedDelegationToken]]) -> list[str]:
    return [each.token_id for each in answer[1]]


def test_a_token_is_shown_to_its_owner_requester_and_renewers() -> None:
    assert ids(told()) == ["t-own", "t-asked", "t-renews"]
    assert told()[0] == len(TOKENS), "each is a step"
    assert ids(told(principal="User:eve")) == []


def test_a_token_is_shown_to_users_that_may_describe_it_or_its_owners() -> None:
    alone = AccessControlEntry(
        ResourceType.DELEGATION_TOKEN,
        "t-other",
        PatternType.LITERAL,
        "User:eve",
        "*",
        Operation.DESCRIBE,
        PermissionType.ALLOW,
    )
    assert ids(told(alone, principal="User:eve")) == ["t-other"]
    of_bob = alone._replace(
        resource_type=ResourceType.USER,
        resource_name="User:bob",
        operation=Operation.DESCRIBE_TOKENS,
    )
    assert ids(told(of_bob, principal="User:eve")) == ["t-asked", "t-other"]


def test_only_tokens_of_the_named_owners_are_shown() -> None:
    assert ids(told(owners=["User:carol"])) == ["t-renews"]
    assert ids(told(owners=["User:dave", "User:nobody"])) == ["t-renews"]
    assert ids(told(owners=["User:alice"])) == ["t-own", "t-asked", "t-renews"]
    assert told(owners=[]) == (0, [])


def test_a_token_shows_owner_requester_times_and_renewers() -> None:
    (token,) = told(owners=["User:carol"])[1]
    assert (token.principal_type, token.principal_name) == ("User", "carol")
    asked = (token.token_requester_principal_type, token.token_requester_principal_name)
    assert asked == ("User", "bob")
    times = (token.issue_timestamp, token.expiry_timestamp, token.max_timestamp)
    assert times == (4, 5, 6)
    names = [(each.principal_type, each.principal_name) for each in token.renewers]
    assert names == [("User", "dave"), ("User", "alice")]


# -- access control entries -----------------------------------------------------------------------


def acl(name: str, principal: str, kind: ResourceType = ResourceType.TOPIC) -> AccessControlEntry:
    literal, read, allow = PatternType.LITERAL, Operation.READ, PermissionType.ALLOW
    return AccessControlEntry(kind, name, literal, principal, "*", read, allow)


ACLS = AclsImage(
    {
        uuid.UUID(int=number): entry
        for number, entry in enumerate(
            [
                acl("t", "User:a"),
                acl("t", "User:b"),
                acl("u", "User:a"),
                acl("t", "User:a", ResourceType.GROUP),
            ]
        )
    }
)
EVERYTHING = p29.DescribeAclsRequest(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)


def described(request: p29.DescribeAclsRequest, **more: str) -> tuple[int, Any]:
    return finished(described_acls(config(authorizer_class_name=STANDARD, **more), ACLS, request))


def shown(response: p29.DescribeAclsResponse) -> list[Any]:
    return [
        (
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            [a.principal for a in each.acls],
        )
        for each in response.resources
    ]


def test_entries_are_shown_by_their_resource() -> None:
    count, response = described(EVERYTHING)
    assert count == len(ACLS.entries_by_id)
    assert shown(response) == [
        (ResourceType.TOPIC, "t", PatternType.LITERAL, ["User:a", "User:b"]),
        (ResourceType.TOPIC, "u", PatternType.LITERAL, ["User:a"]),
        (ResourceType.GROUP, "t", PatternType.LITERAL, ["User:a"]),
    ]
    first = response.resources[0].acls[0]
    assert (first.host, first.operation, first.permission_type) == ("*", 3, 3)


def test_a_filter_returns_only_what_it_matches() -> None:
    request = p29.DescribeAclsRequest.decode(EVERYTHING.to_bytes(1), 1)[0]
    request.principal_filter = "User:b"
    assert shown(described(request)[1]) == [(2, "t", 3, ["User:b"])]


@pytest.mark.parametrize("value", [0, 99])
def test_a_filter_with_zeroes_for_what_is_unknown_is_refused(value: int) -> None:
    request = p29.DescribeAclsRequest.decode(EVERYTHING.to_bytes(1), 1)[0]
    request.operation = value
    response = described(request)[1]
    if value:
        assert (response.error_code, shown(response)) == (ErrorCode.NONE, [])
    else:
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert response.error_message == "operation 0 is unknown"


def test_a_principal_of_no_letters_is_no_unknown_number() -> None:
    request = p29.DescribeAclsRequest.decode(EVERYTHING.to_bytes(1), 1)[0]
    request.principal_filter = ""
    assert described(request)[1].error_code == ErrorCode.NONE


def test_without_an_authorizer_there_are_no_entries() -> None:
    count, response = finished(described_acls(config(), ACLS, EVERYTHING))
    assert (count, response.error_code) == (0, ErrorCode.SECURITY_DISABLED)


# -- SCRAM credentials ----------------------------------------------------------------------------

SCRAM = ScramImage(
    {
        ScramKey(user, mechanism): ScramCredential(b"salt", b"stored", b"server", iterations)
        for user, mechanism, iterations in (("b", 2, 8_192), ("b", 1, 4_096), ("a", 1, 5_000))
    }
)


def test_credentials_are_shown_by_user() -> None:
    count, response = finished(
        described_scram(SCRAM, p50.DescribeUserScramCredentialsRequest(users=None))
    )
    assert count == 5
    found = {
        each.user: [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in response.results
    }
    assert found == {"a": [(1, 5_000)], "b": [(1, 4_096), (2, 8_192)]}
    assert all(each.error_code == ErrorCode.NONE for each in response.results)


def test_a_missing_user_and_one_named_twice_are_errors() -> None:
    names = [p50.UserName(name=each) for each in ("a", "nobody", "b", "b")]
    _, response = finished(
        described_scram(SCRAM, p50.DescribeUserScramCredentialsRequest(users=names))
    )
    found = [(each.user, each.error_code, each.error_message) for each in response.results]
    assert found == [
        ("a", ErrorCode.NONE, ""),
        ("nobody", ErrorCode.RESOURCE_NOT_FOUND, "the user has no SCRAM credential"),
        ("b", ErrorCode.DUPLICATE_RESOURCE, "the user is named twice in one request"),
    ]
    assert [len(each.credential_infos) for each in response.results] == [1, 0, 0]


# -- configurations -------------------------------------------------------------------------------

SOURCE = next(iter(ConfigSource))
CONFIG = DescribedConfig(
    name="k",
    value="v",
    source=SOURCE,
    read_only=True,
    sensitive=False,
    synonyms=(ConfigSynonym("s", "w", SOURCE),),
    type=next(iter(ConfigType)),
    documentation="what it is",
)


@pytest.mark.parametrize("wanted", [True, False])
def test_documentation_and_synonyms_are_shown_when_they_are_asked_for(wanted: bool) -> None:
    request = p32.DescribeConfigsRequest(include_documentation=wanted, include_synonyms=wanted)
    entry = config_entry(request, CONFIG)
    assert entry.documentation == ("what it is" if wanted else None)
    assert [each.name for each in entry.synonyms] == (["s"] if wanted else [])
    assert (entry.name, entry.value, entry.read_only, entry.is_sensitive) == ("k", "v", True, False)
    assert config_entry(request, CONFIG._replace(documentation="")).documentation is None


def test_an_answer_has_so_many_entries_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "MAX_DESCRIBED_ENTRIES", 5)
    asked: list[str] = []

    def describe(name: str, count: int) -> Any:
        asked.append(name)
        return [CONFIG] * count

    entries = DescribedEntries(p32.DescribeConfigsRequest(), config(), ConfigsImage())
    results = []
    for name, count in (("a", 2), ("a", 2), ("b", 2), ("b", 2), ("c", 1), ("d", 1), ("c", 1)):
        results.append(p32.DescribeConfigsResult())
        entries.fill(results[-1], name, lambda n=name, c=count: describe(n, c))  # type: ignore[misc]
    codes = [each.error_code for each in results]
    refused, fine = ErrorCode.POLICY_VIOLATION, ErrorCode.NONE
    assert codes == [fine, fine, refused, refused, fine, refused, refused]
    assert asked == ["a", "b", "c"], "those that are alike are described once, a full answer's not"
    assert results[0].configs is results[1].configs
    assert [len(each.configs) for each in results] == [2, 2, 0, 0, 1, 0, 0]
    assert str(results[2].error_message).startswith("the answer has ")


# -- quotas ---------------------------------------------------------------------------------------

QUOTAS = ClientQuotasImage(
    {
        (("user", "a"),): {"request_percentage": 1.0},
        (("user", None),): {"request_percentage": 2.0},
        (("user", "a"), ("client-id", "c")): {"request_percentage": 3.0},
        (("client-id", "c"),): {"request_percentage": 4.0},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 5.0},
    }
)


def values(*components: tuple[str, int, str | None], strict: bool = False) -> list[float]:
    parts = [p48.ComponentData(entity_type=t, match_type=m, match=n) for t, m, n in components]
    count, response = finished(
        described_quotas(QUOTAS, p48.DescribeClientQuotasRequest(components=parts, strict=strict))
    )
    assert response.error_code == ErrorCode.NONE, response.error_message
    assert count == len(QUOTAS.quotas_by_entity)
    return [value.value for entry in response.entries for value in entry.values]


def test_quotas_of_the_entities_that_a_filter_matches() -> None:
    assert values() == [1, 2, 3, 4, 5]
    assert values(strict=True) == []
    assert values(("user", 0, "a")) == [1, 3]
    assert values(("user", 0, "a"), strict=True) == [1]
    assert values(("user", 1, None)) == [2]
    assert values(("user", 2, None)) == [1, 2, 3]
    assert values(("user", 2, None), strict=True) == [1, 2]
    assert values(("user", 2, None), ("client-id", 2, None)) == [3]
    assert values(("user", 0, "a"), ("client-id", 0, "c"), strict=True) == [3]
    assert values(("client-id", 0, "c"), strict=True) == [4]
    assert values(("ip", 2, None)) == [5]
    assert values(("ip", 0, "10.0.0.1"), strict=True) == [5]


@pytest.mark.parametrize(
    ("components", "error", "text"),
    [
        ([("", 0, "x")], ErrorCode.INVALID_REQUEST, "is empty"),
        ([("user", 0, "a"), ("user", 1, None)], ErrorCode.INVALID_REQUEST, "user is in the filter"),
        (
            [("x" * 300, 0, "a")],
            ErrorCode.UNSUPPORTED_VERSION,
            f"'{'x' * 250}… (300 characters)' is none of",
        ),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST, "match type 3 is unknown"),
        ([("user", -1, None)], ErrorCode.INVALID_REQUEST, "match type -1 is unknown"),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST, "a name goes with match type 0"),
        ([("user", 1, "a")], ErrorCode.INVALID_REQUEST, "a name goes with match type 0"),
        ([("user", 2, "a")], ErrorCode.INVALID_REQUEST, "a name goes with match type 0"),
        ([("ip", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST, "ip is not combined"),
        ([("client-id", 0, "c"), ("ip", 0, "h")], ErrorCode.INVALID_REQUEST, "ip is not combined"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    components: list[tuple[str, int, str | None]], error: ErrorCode, text: str
) -> None:
    parts = [p48.ComponentData(entity_type=t, match_type=m, match=n) for t, m, n in components]
    count, response = finished(
        described_quotas(QUOTAS, p48.DescribeClientQuotasRequest(components=parts))
    )
    assert (count, response.error_code, response.entries) == (0, error, None)
    assert text in str(response.error_message)
    assert "ErrorCode" not in str(response.error_message)


def test_an_authorizer_without_rules_allows_everything() -> None:
    authorizer = Authorizer()
    question = ("User:a", "10.0.0.1", Operation.READ, ResourceType.TOPIC)
    assert authorizer.authorize(*question, "t") is True
    assert authorizer.authorize_by_resource_type(*question) is True


# -- who may change what decides who is a super user ----------------------------------------------

STORE = "listener.name.outside.ssl.truststore.location"


class Alters(Authorizer):
    """Allows ALTER of the cluster, or not."""

    def __init__(self, *, allows: bool) -> None:
        self.allows = allows

    def authorize(self, *question: Any) -> bool:  # type: ignore[override]
        return self.allows and question[2] is Operation.ALTER


def may_change(
    *changed: tuple[str, str | None],
    current: dict[str, str] | None = None,
    kind: int = ConfigResourceType.BROKER,
    is_whole: bool = False,
    allows: bool = False,
) -> bool:
    """Whether a sender may, by AlterConfigs or by IncrementalAlterConfigs."""
    if is_whole:
        resource: Any = p33.AlterConfigsResource(
            resource_type=kind,
            resource_name="1",
            configs=[p33.AlterableConfig(name=name, value=value) for name, value in changed],
        )
    else:
        resource = p44.AlterConfigsResource(
            resource_type=kind,
            resource_name="1",
            configs=[p44.AlterableConfig(name=name, value=value) for name, value in changed],
        )
    return may_change_stores(Sender("User:a", Alters(allows=allows)), resource, current or {})


@pytest.mark.parametrize("is_whole", [True, False])
def test_stores_of_listeners_ask_for_alter_of_the_cluster(is_whole: bool) -> None:
    assert may_change(("log.cleaner.threads", "2"), is_whole=is_whole)
    assert not may_change((STORE, "/ca.pem"), is_whole=is_whole)
    assert not may_change(("log.cleaner.threads", "2"), (STORE, "/ca.pem"), is_whole=is_whole)
    assert may_change((STORE, "/ca.pem"), is_whole=is_whole, allows=True)
    assert may_change((STORE, "/ca.pem"), is_whole=is_whole, kind=ConfigResourceType.TOPIC)


def test_a_whole_configuration_changes_what_differs_and_what_it_does_not_name() -> None:
    current = {STORE: "/ca.pem", "log.cleaner.threads": "2"}
    assert may_change((STORE, "/ca.pem"), current=current, is_whole=True)
    assert not may_change((STORE, "/other.pem"), current=current, is_whole=True)
    assert not may_change(("log.cleaner.threads", "2"), current=current, is_whole=True)
    assert not may_change((STORE, "/ca.pem"), current=current), "by increments what is named counts"
    assert may_change(("log.cleaner.threads", "3"), current=current)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ConfigResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ConfigResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (ConfigResourceType.BROKER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_a_resource_s_configuration_has_the_resource_s_rights(
    kind: ConfigResourceType, error: ErrorCode
) -> None:
    for allows, expected in ((True, ErrorCode.NONE), (False, error)):
        sender = Sender("User:a", Alters(allows=allows))
        assert config_permission(sender, Operation.ALTER, kind, "x") is expected
