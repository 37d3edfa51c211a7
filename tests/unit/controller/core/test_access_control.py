"""Access control entries at the controller: created, deleted, refused, and answered when
committed.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from moldau.controller.apis import DECIDERS
from moldau.controller.core.controller_core import ControllerCore, EntryChanges
from moldau.controller.core.result import MAX_RECORDS_PER_REQUEST, Asked
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.metadata.image import Provenance
from moldau.metadata.image.security import AccessControlEntry
from moldau.metadata.steps import at_once
from moldau.protocol.access_control import (
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p30_create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.p31_delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.protocol.metadata_records import (
    AccessControlEntryRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    RemoveAccessControlEntryRecord,
)
from tests.unit.metadata.builders import CLUSTER_ID, CoreDriver, node_config

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}


@pytest.fixture
def driver() -> CoreDriver:
    return CoreDriver(**AUTHORIZER)


def creation(name: str = "t", **fields: Any) -> AclCreation:
    values = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": name,
        "principal": "User:a",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": PermissionType.ALLOW,
        **fields,
    }
    return AclCreation(**values)


def everything(**fields: Any) -> DeleteAclsFilter:
    values = {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": PermissionType.ANY,
        **fields,
    }
    return DeleteAclsFilter(**values)


def create(driver: CoreDriver, *creations: AclCreation) -> list[tuple[int, str | None]]:
    results = driver.ask(CreateAclsRequest(creations=list(creations))).results
    return [(each.error_code, each.error_message) for each in results]


def delete(driver: CoreDriver, *filters: DeleteAclsFilter) -> list[set[str]]:
    response = driver.ask(DeleteAclsRequest(filters=list(filters)))
    assert not any(each.error_code for each in response.filter_results)
    return [
        {match.resource_name for match in each.matching_acls} for each in response.filter_results
    ]


def entries(driver: CoreDriver) -> set[AccessControlEntry]:
    found = set(driver.core.state.image.acls.entries_by_id.values())
    assert driver.core.state.access_control_entries.keys() == found
    return found


def test_an_entry_is_made_once(driver: CoreDriver) -> None:
    twice = [creation(), creation()]
    assert create(driver, *twice) == [(0, ""), (0, "")]
    assert len(entries(driver)) == len(driver.appended) == 1
    assert create(driver, *twice) == [(0, ""), (0, "")]
    assert not driver.appended
    create(driver, creation(host="10.0.0.1"), creation(resource_pattern_type=PatternType.PREFIXED))
    assert len(entries(driver)) == 3


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (creation(""), "name is empty"),
        (creation(resource_type=ResourceType.CLUSTER), "'kafka-cluster', not 't'"),
        (creation(resource_type=ResourceType.ANY), "resource_type 1 is none of 2 TOPIC"),
        (creation(resource_type=42), "resource_type 42 is none of"),
        (creation(resource_pattern_type=PatternType.MATCH), "none of 3 LITERAL, 4 PREFIXED"),
        (creation(operation=Operation.ANY), "operation 1 is none of 2 ALL, 3 READ"),
        (creation(operation=-7), "operation -7 is none of"),
        (creation(permission_type=0), "none of 2 DENY, 3 ALLOW"),
        (creation(principal="alice"), "'alice' is not TYPE:NAME"),
    ],
)
def test_what_cannot_be_an_entry_is_refused_alone(
    driver: CoreDriver, bad: AclCreation, words: str
) -> None:
    (code, message), good = create(driver, bad, creation("fine"))
    assert code == ErrorCode.INVALID_REQUEST
    assert words in str(message)
    assert good == (0, "")
    assert {each.resource_name for each in entries(driver)} == {"fine"}


def test_an_entry_may_be_about_the_cluster(driver: CoreDriver) -> None:
    cluster = creation("kafka-cluster", resource_type=ResourceType.CLUSTER)
    assert create(driver, cluster) == [(0, "")]
    assert len(entries(driver)) == 1


def test_what_is_refused_of_filters_removes_nothing(driver: CoreDriver) -> None:
    create(driver, creation("a"))
    wanted = [everything(operation=99), everything(resource_name_filter="b")]
    refused, fine = driver.ask(DeleteAclsRequest(filters=wanted)).filter_results
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "unknown" in refused.error_message
    assert (fine.error_code, fine.error_message) == (0, None)
    assert refused.matching_acls == fine.matching_acls == []
    without = CoreDriver()
    without.append([(record, 0) for record in driver_records(driver)])
    (answer,) = without.ask(DeleteAclsRequest(filters=[everything()])).filter_results
    assert (answer.error_code, answer.matching_acls) == (ErrorCode.SECURITY_DISABLED, [])
    assert len(entries(without)) == len(entries(driver)) == 1


def driver_records(driver: CoreDriver) -> list[AccessControlEntryRecord]:
    """The image's entries as records."""
    return [
        AccessControlEntryRecord(id=entry_id, **entry._asdict())
        for entry_id, entry in driver.image.acls.entries_by_id.items()
    ]


def test_without_an_authorizer_there_are_no_entries() -> None:
    driver = CoreDriver()
    assert create(driver, creation())[0][0] == ErrorCode.SECURITY_DISABLED
    response = driver.ask(DeleteAclsRequest(filters=[everything()]))
    assert response.filter_results[0].error_code == ErrorCode.SECURITY_DISABLED
    assert not entries(driver)


def test_filters(driver: CoreDriver) -> None:
    names = ("orders", "orders-eu", "*", "o")
    create(
        driver,
        creation("orders"),
        creation("orders-eu", principal="User:b", operation=Operation.WRITE),
        creation("*", host="10.0.0.1"),
        creation("o", resource_pattern_type=PatternType.PREFIXED),
        creation("orders", resource_type=ResourceType.GROUP, permission_type=PermissionType.DENY),
    )
    groups = {"resource_type_filter": ResourceType.GROUP}

    def matched(**fields: Any) -> set[str]:
        fields = {"resource_type_filter": ResourceType.TOPIC, **fields}
        wanted = everything(**fields)
        before = entries(driver)
        [found] = delete(driver, wanted)
        gone = before - entries(driver)
        assert {each.resource_name for each in gone} == found
        create(
            driver,
            *(
                creation(
                    each.resource_name,
                    resource_type=each.resource_type,
                    resource_pattern_type=each.pattern_type,
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission_type,
                )
                for each in gone
            ),
        )
        assert entries(driver) == before
        return found

    match = {"pattern_type_filter": PatternType.MATCH}
    assert matched() == set(names)
    assert matched(resource_name_filter="orders") == {"orders"}
    assert matched(resource_name_filter="orders", **match) == {"orders", "*", "o"}
    assert matched(resource_name_filter="x", **match) == {"*"}
    assert matched(**match) == set(names)
    assert matched(pattern_type_filter=PatternType.PREFIXED) == {"o"}
    assert matched(resource_name_filter="o", pattern_type_filter=PatternType.LITERAL) == set()
    assert matched(principal_filter="User:b") == {"orders-eu"}
    assert matched(host_filter="10.0.0.1") == {"*"}
    assert matched(operation=Operation.WRITE) == {"orders-eu"}
    assert matched(permission_type=PermissionType.DENY) == set()
    assert matched(permission_type=PermissionType.DENY, **groups) == {"orders"}


def test_an_entry_of_two_filters_is_named_twice_and_removed_once(driver: CoreDriver) -> None:
    create(driver, creation("a"), creation("b"))
    one = everything(resource_name_filter="a")
    assert delete(driver, everything(), one) == [{"a", "b"}, {"a"}]
    assert len(driver.appended) == 2
    assert not entries(driver)


def test_one_request_makes_and_removes_only_so_many(driver: CoreDriver) -> None:
    some = [creation(f"t{index}") for index in range(MAX_RECORDS_PER_REQUEST)]
    refused = create(driver, *some, creation("one-more"))
    assert {code for code, _ in refused} == {ErrorCode.POLICY_VIOLATION}
    assert not entries(driver)
    create(driver, *some)
    create(driver, creation("one-more"))
    response = driver.ask(DeleteAclsRequest(filters=[everything()]))
    (answer,) = response.filter_results
    assert (answer.error_code, answer.matching_acls) == (ErrorCode.POLICY_VIOLATION, [])
    assert len(entries(driver)) == MAX_RECORDS_PER_REQUEST + 1
    delete(driver, everything(resource_name_filter="one-more"))
    delete(driver, everything())
    assert not entries(driver)


def test_entries_are_answered_when_they_are_committed_and_forgotten_when_they_never_are() -> None:
    told: dict[object, AccessControlEntry] = {}

    def hear(changes: EntryChanges) -> None:
        for entry_id, each in changes.items():
            if each is None:
                del told[entry_id]
            else:
                told[entry_id] = each

    settings = ControllerSettings(node_config(**AUTHORIZER), CLUSTER_ID)
    core = ControllerCore(settings, random.Random(7), on_entries_changed=hear)
    log: list[list[Any]] = []

    def append(records: list[tuple[Any, int]]) -> None:
        change = at_once(core.prepare(records))
        at_once(core.on_appended(change, len(log), 0))
        log.append([record for record, _ in records])

    def commit(offset: int) -> None:
        core.on_committed(log[offset], Provenance(offset, 1, 0))

    def ask(request: Any) -> None:
        result = at_once(
            core.handle(request, DECIDERS[ApiKey(request.API_KEY)], Asked(len(log), 0))
        )
        append(result.records)

    bootstrap = feature_records(initial_feature_levels())
    append(core.activate(1, bootstrap, monotonic_ms=0))
    commit(0)
    ask(CreateAclsRequest(creations=[creation("a")]))
    assert not told
    commit(1)
    assert {each.resource_name for each in told.values()} == {"a"}
    ask(CreateAclsRequest(creations=[creation("b")]))
    core.deactivate()
    assert {each.resource_name for each in core.state.access_control_entries} == {"a"}
    # Another leader's record takes the place of the one that was lost.
    [removed] = told
    records = [record for batch in log[:2] for record in batch]
    core.on_committed([RemoveAccessControlEntryRecord(id=removed)], Provenance(2, 2, 0))
    assert not told
    assert not core.state.access_control_entries
    # A snapshot replaces everything.
    marks = (BeginTransactionRecord, EndTransactionRecord)
    whole = [each for each in records if not isinstance(each, marks)]
    core.load_snapshot(whole, Provenance(5, 3, 0))
    assert {each.resource_name for each in told.values()} == {"a"}
    core.load_snapshot(whole[:-1], Provenance(6, 3, 0))
    assert not told
