"""What the lines about changes say, of each kind of request."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey, api_name
from moldau.protocol.error_responses import error_response
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p30_create_acls as p30
from moldau.protocol.messages import p31_delete_acls as p31
from moldau.protocol.messages import p44_incremental_alter_configs as p44
from moldau.protocol.messages import p49_alter_client_quotas as p49
from moldau.protocol.messages import p51_alter_user_scram_credentials as p51
from moldau.protocol.messages.p48_describe_client_quotas import EntityData
from moldau.protocol.schema import Message
from moldau.runtime.telemetry.logs import AUDIT, JsonFormatter
from moldau.server.apis import APIS
from moldau.server.authorizer import Authorizer
from moldau.server.change_log import CHANGES, MAX_PARTS, ChangeLog
from moldau.server.request import Sender
from tests.kit.manual_clock import ManualClock

WHO = "Principal = User:alice from host = 10.0.0.1 on listener = CLIENTS "


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines of a request and its response."""
    clock = ManualClock()

    def lines(request: Any, response: Message) -> list[str]:
        caplog.clear()
        log = ChangeLog(clock)
        sender = Sender(
            "User:alice",
            Authorizer(),
            client_host="10.0.0.1",
            listener_name="CLIENTS",
            api_key=ApiKey(request.API_KEY),
        )
        with caplog.at_level(logging.INFO):
            changed = APIS[ApiKey(request.API_KEY)].changed
            assert changed is not None
            for _ in log.answered(sender, request, changed(request, response)):
                pass
        assert {each.name for each in caplog.records} <= {"moldau.audit"}
        requests = {each.msg.fields["request"] for each in caplog.records}  # type: ignore[attr-defined]
        assert requests <= {api_name(request.API_KEY)}
        return [each.getMessage().removeprefix(WHO) for each in caplog.records]

    return lines


def test_access_control_entries(told: Any) -> None:
    created = p30.CreateAclsRequest(
        creations=[
            p30.AclCreation(
                resource_type=2,
                resource_name=name,
                resource_pattern_type=4,
                principal="User:bob",
                host="*",
                operation=3,
                permission_type=3,
            )
            for name in ("pay", "refused", "a\nb")
        ]
    )
    response = p30.CreateAclsResponse(
        results=[p30.AclCreationResult(error_code=code) for code in (0, 42, 0)]
    )
    assert told(created, response) == [
        "created the ACL ALLOW READ of User:bob from host * on Topic:PREFIXED:pay",
        'created the ACL ALLOW READ of User:bob from host * on Topic:PREFIXED:"a\\nb"',
    ]
    entry = p31.DeleteAclsMatchingAcl(
        resource_type=2,
        resource_name="pay",
        pattern_type=3,
        principal="User:bob",
        host="10.0.0.9",
        operation=2,
        permission_type=2,
    )
    response = p31.DeleteAclsResponse(
        filter_results=[p31.DeleteAclsFilterResult(matching_acls=[entry])]
    )
    assert told(p31.DeleteAclsRequest(filters=[p31.DeleteAclsFilter()]), response) == [
        "deleted the ACL DENY ALL of User:bob from host 10.0.0.9 on Topic:LITERAL:pay"
    ]


def test_passwords_of_users(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    request = p51.AlterUserScramCredentialsRequest(
        deletions=[p51.ScramCredentialDeletion(name="bob", mechanism=1)],
        upsertions=[
            p51.ScramCredentialUpsertion(
                name=name, mechanism=2, iterations=4096, salt=b"s4lt", salted_password=b"s3cret"
            )
            for name in ("carol", "refused")
        ],
    )
    results = [("bob", 0), ("carol", 0), ("refused", 93)]
    response = p51.AlterUserScramCredentialsResponse(
        results=[p51.AlterUserScramCredentialsResult(user=u, error_code=e) for u, e in results]
    )
    assert told(request, response) == [
        "deleted the password of User:bob: SCRAM-SHA-256",
        "set the password of User:carol: SCRAM-SHA-512",
    ]
    assert "s3cret" not in caplog.text


def test_quotas(told: Any) -> None:
    def entry(**entity: str | None) -> list[EntityData]:
        return [
            EntityData(entity_type=kind.replace("_", "-"), entity_name=name)
            for kind, name in entity.items()
        ]

    ops = [
        p49.OpData(key="producer_byte_rate", value=5.0),
        p49.OpData(key="request_percentage", remove=True),
    ]
    both, refused = entry(user="bob", client_id=None), entry(user="refused")
    request = p49.AlterClientQuotasRequest(
        entries=[p49.EntryData(entity=each, ops=ops) for each in (both, refused)]
    )
    response = p49.AlterClientQuotasResponse(
        entries=[
            p49.EntryDataResponse(entity=both),
            p49.EntryDataResponse(entity=refused, error_code=42),
        ]
    )
    assert told(request, response) == [
        "changed the quotas of client-id=<default>,user=bob: SET producer_byte_rate, "
        "DELETE request_percentage"
    ]
    request.validate_only = True
    assert told(request, response) == []


def test_many_keys_are_counted(told: Any) -> None:
    keys = [p44.AlterableConfig(name=f"k{n}", value="v", config_operation=n % 4) for n in range(30)]
    resource = p44.AlterConfigsResource(resource_type=2, resource_name="flights", configs=keys)
    request = p44.IncrementalAlterConfigsRequest(resources=[resource])
    answer = p44.AlterConfigsResourceResponse(resource_type=2, resource_name="flights")
    [line] = told(request, p44.IncrementalAlterConfigsResponse(responses=[answer]))
    begin = "changed the configuration of TOPIC:flights: SET k0, DELETE k1, APPEND k2, SUBTRACT k3"
    assert line.startswith(begin)
    assert line.endswith(f"k{MAX_PARTS - 1}, and {30 - MAX_PARTS} more")
    del resource.configs[MAX_PARTS:]
    [line] = told(request, p44.IncrementalAlterConfigsResponse(responses=[answer]))
    assert line.endswith(f"k{MAX_PARTS - 1}")


@pytest.mark.parametrize(
    "api_key", [key for key in APIS if APIS[key].changed], ids=lambda key: key.name
)
def test_a_request_that_failed_as_a_whole_is_no_line(told: Any, api_key: ApiKey) -> None:
    samples: dict[ApiKey, Any] = {
        ApiKey.CREATE_ACLS: p30.CreateAclsRequest(creations=[p30.AclCreation()]),
        ApiKey.DELETE_ACLS: p31.DeleteAclsRequest(filters=[p31.DeleteAclsFilter()]),
        ApiKey.ALTER_CLIENT_QUOTAS: p49.AlterClientQuotasRequest(
            entries=[p49.EntryData(entity=[EntityData(entity_type="user", entity_name="a")])]
        ),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: p51.AlterUserScramCredentialsRequest(
            deletions=[p51.ScramCredentialDeletion(name="a", mechanism=1)]
        ),
    }
    request = samples.get(api_key) or p44.IncrementalAlterConfigsRequest(
        resources=[p44.AlterConfigsResource(resource_type=4, resource_name="1")]
    )
    assert told(request, error_response(request, ErrorCode.NOT_CONTROLLER, "no")) == []


def test_the_logger_is_one_that_clients_cannot_silence() -> None:
    assert CHANGES.name in AUDIT


def test_the_parts_of_a_line_are_fields_for_machines(
    told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    request = p51.AlterUserScramCredentialsRequest(
        deletions=[p51.ScramCredentialDeletion(name="bob", mechanism=1)]
    )
    result = p51.AlterUserScramCredentialsResult(user="bob")
    told(request, p51.AlterUserScramCredentialsResponse(results=[result]))
    written = JsonFormatter().format(caplog.records[0])
    for part in ('"event": "changed"', '"subject": "User:bob"', '"host": "10.0.0.1"'):
        assert part in written
