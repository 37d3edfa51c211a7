"""Decisions by access control entries, beside a model that looks at every entry there is."""

from __future__ import annotations

import random
import uuid

import pytest

from moldau.config import ConfigError, NodeConfig
from moldau.config.principals import NodePrincipals
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol.access_control import (
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)
from moldau.server.authorizer import Authorizer
from moldau.server.standard_authorizer import StandardAuthorizer
from tests.kit import access_model
from tests.kit.manual_clock import ManualClock

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ALICE, HOST = "User:alice", "10.0.0.1"
PRINCIPALS = (ALICE, "User:bob", "User:*")
HOSTS = (HOST, "::FFFF:10.0.0.1", "10.0.0.2", "10.0.0.0/8", "0:0:0:0:0:0:0:1", "*")
NAMES = (
    "*",
    "a",
    "ab",
    "abc",
    "abd",
    "b",
    "hardcode",
    "hardcodes",
    "h",
    "é",
    "abcd" * 3,
    "abcd" * 5,
)
OPERATIONS = [each for each in Operation if each not in (Operation.UNKNOWN, Operation.ANY)]


def entry(
    name: str = "t",
    operation: Operation = Operation.READ,
    permission: PermissionType = PermissionType.ALLOW,
    *,
    principal: str = ALICE,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    kind: ResourceType = ResourceType.TOPIC,
) -> AccessControlEntry:
    return AccessControlEntry(kind, name, pattern, principal, host, operation, permission)


def authorizer(
    *entries: AccessControlEntry,
    super_users: tuple[str, ...] = (),
    allows_unmentioned: bool = False,
) -> StandardAuthorizer:
    made = StandardAuthorizer(super_users, allows_unmentioned=allows_unmentioned)
    made.change({uuid.uuid4(): each for each in entries})
    return made


def may(
    asked: StandardAuthorizer,
    operation: Operation = Operation.READ,
    name: str = "t",
    *,
    principal: str = ALICE,
    host: str = HOST,
    kind: ResourceType = ResourceType.TOPIC,
) -> bool:
    return asked.authorize(principal, host, operation, kind, name)


@pytest.mark.parametrize("seed", range(40))
def test_decisions_are_those_of_a_model_while_entries_come_and_go(seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    allows_unmentioned = seed % 4 == 0
    asked = StandardAuthorizer((), allows_unmentioned=allows_unmentioned)
    entries: dict[uuid.UUID, AccessControlEntry] = {}
    for _ in range(60):
        changes: dict[uuid.UUID, AccessControlEntry | None] = {
            each: None for each in entries if dice.random() < 0.1
        }
        for _ in range(dice.randrange(4)):
            changes[uuid.UUID(int=dice.getrandbits(128))] = entry(
                dice.choice(NAMES),
                dice.choice(OPERATIONS),
                dice.choice((PermissionType.ALLOW, PermissionType.ALLOW, PermissionType.DENY)),
                principal=dice.choice(PRINCIPALS),
                host=dice.choice(HOSTS),
                pattern=dice.choice((PatternType.LITERAL, PatternType.PREFIXED)),
                kind=dice.choice((ResourceType.TOPIC, ResourceType.GROUP)),
            )
        for entry_id, new in changes.items():
            if new is None:
                del entries[entry_id]
            else:
                entries[entry_id] = new
        asked.change(changes)
        for _ in range(20):
            operation, name = dice.choice(OPERATIONS), dice.choice(NAMES)
            kind = dice.choice((ResourceType.TOPIC, ResourceType.GROUP))
            question = (list(entries.values()), ALICE, HOST, operation, kind)
            expected = access_model.may(*question, name, allows_unmentioned=allows_unmentioned)
            assert may(asked, operation, name, kind=kind) == expected, (question, name)
            rule = asked.rule(ALICE, HOST, operation, kind, name)
            if rule.entry is None:
                assert rule.name == ("NoAclFound" if expected else "DefaultDeny")
            else:
                allows = rule.entry.permission_type == PermissionType.ALLOW
                assert (rule.name, allows) == ("MatchingAcl", expected)
                assert rule.entry in entries.values()
                assert access_model.concerns(rule.entry, ALICE, HOST, kind)
                assert access_model.is_about(rule.entry, kind, name)
                assert access_model.reaches(rule.entry, operation)
            expected = access_model.may_by_type(*question, allows_unmentioned=allows_unmentioned)
            found = asked.authorize_by_resource_type(ALICE, HOST, operation, kind)
            assert found == expected, question


# -- single rules ----------------------------------------------------------------------------------


def test_without_rules_there_is_none_to_tell() -> None:
    question = (ALICE, HOST, Operation.READ, ResourceType.TOPIC, "t")
    assert Authorizer().authorize(*question)
    with pytest.raises(NotImplementedError):
        Authorizer().rule(*question)


def test_nothing_is_allowed_without_an_entry() -> None:
    assert not may(authorizer())
    assert may(authorizer(entry()))
    assert not may(authorizer(entry()), principal="User:bob")
    assert not may(authorizer(entry()), Operation.WRITE)
    assert not may(authorizer(entry()), kind=ResourceType.GROUP)


def test_a_denial_decides() -> None:
    allow = entry()
    for deny in (
        entry(permission=PermissionType.DENY, principal="User:*"),
        entry("*", permission=PermissionType.DENY),
        entry("t", permission=PermissionType.DENY, pattern=PatternType.PREFIXED),
        entry(operation=Operation.ALL, permission=PermissionType.DENY, host=HOST),
    ):
        assert not may(authorizer(allow, deny))
        assert not may(authorizer(deny, allow))
    assert may(authorizer(allow, entry(permission=PermissionType.DENY, host="10.9.9.9")))


def test_to_deny_one_operation_denies_no_other() -> None:
    both = authorizer(entry(), entry(operation=Operation.WRITE, permission=PermissionType.DENY))
    assert may(both, Operation.DESCRIBE)
    denied = authorizer(
        entry(), entry(operation=Operation.DESCRIBE, permission=PermissionType.DENY)
    )
    assert may(denied)
    assert not may(denied, Operation.DESCRIBE)


SAME = (
    ("2001:db8:0:0:0:0:0:5", "2001:db8::5"),
    ("2001:DB8::5", "2001:db8::5"),
    ("::ffff:10.0.0.5", "10.0.0.5"),
    ("fe80:0:0:0:0:0:0:1%eth0", "fe80::1"),
)


@pytest.mark.parametrize(("written", "host"), SAME)
def test_a_host_is_an_address_however_it_is_written(written: str, host: str) -> None:
    denial = entry("t", permission=PermissionType.DENY, host=written)
    asked = authorizer(entry(), denial)
    assert may(asked)
    assert not may(asked, host=host)
    assert asked.rule(ALICE, host, Operation.READ, ResourceType.TOPIC, "t").entry == denial
    alone = authorizer(entry(host=written))
    assert may(alone, host=host)
    assert not may(alone)
    assert alone.authorize_by_resource_type(ALICE, host, Operation.READ, ResourceType.TOPIC)


def test_two_forms_of_one_address_are_two_entries() -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    asked = authorizer()
    asked.change({first: entry(host="2001:db8:0:0:0:0:0:5"), second: entry(host="2001:db8::5")})
    for entry_id, is_left in ((second, True), (first, False)):
        asked.change({entry_id: None})
        assert may(asked, host="2001:db8::5") == is_left


def test_a_network_is_no_host() -> None:
    denials = [
        entry(permission=PermissionType.DENY, host=each) for each in ("10.0.0.0/8", "10.0.0.1/32")
    ]
    assert may(authorizer(entry(), *denials))


def test_super_users_may_do_everything() -> None:
    deny = entry("*", Operation.ALL, PermissionType.DENY, principal="User:*")
    asked = authorizer(deny, super_users=(ALICE,))
    assert may(asked)
    assert asked.rule(ALICE, HOST, Operation.READ, ResourceType.TOPIC, "t").name == "SuperUser"
    assert asked.authorize_by_resource_type(ALICE, HOST, Operation.WRITE, ResourceType.TOPIC)
    assert not may(asked, principal="User:bob")


NODE = "User:CN=broker-1,OU=nodes"


def test_nodes_may_do_what_nodes_do_and_nothing_else() -> None:
    deny = entry("*", Operation.ALL, PermissionType.DENY, principal="User:*")
    asked = StandardAuthorizer(
        (), allows_unmentioned=False, nodes=NodePrincipals("User:CN=*,OU=nodes")
    )

    def allowed(principal: str) -> set[tuple[str, str, str]]:
        return {
            (operation.name, kind.name, name)
            for kind in ResourceType
            for operation in Operation
            for name in ("kafka-cluster", "flights", "__consumer_offsets", "__transaction_state")
            if asked.authorize(principal, HOST, operation, kind, name)
        }

    names = ("kafka-cluster", "flights", "__consumer_offsets", "__transaction_state")
    rights = {
        *(("CLUSTER_ACTION", "CLUSTER", name) for name in names),
        *(("DESCRIBE", "CLUSTER", name) for name in names),
        *(("DESCRIBE", "TOPIC", name) for name in names),
        ("CREATE", "TOPIC", "__consumer_offsets"),
        ("CREATE", "TOPIC", "__transaction_state"),
    }
    assert allowed(NODE) == rights, "before the first image too: controllers elect a leader then"
    asked.change({uuid.uuid4(): deny})
    assert allowed(NODE) == rights
    cluster = (Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    assert asked.rule(NODE, HOST, *cluster).name == "NodePrincipal"
    read = (Operation.READ, ResourceType.TOPIC, "flights")
    assert asked.rule(NODE, HOST, *read).name == "MatchingAcl"
    assert not asked.authorize_by_resource_type(NODE, HOST, Operation.WRITE, ResourceType.TOPIC)
    for other in ("User:nodes", "User:broker-1", "User:CN=broker-1,OU=clients", "User:ANONYMOUS"):
        assert allowed(other) == set()


def test_a_prefix_is_no_name_and_a_name_no_prefix() -> None:
    prefixed = authorizer(entry("t-", pattern=PatternType.PREFIXED))
    assert may(prefixed, name="t-1")
    assert may(prefixed, name="t-")
    assert not may(prefixed, name="t")
    assert not may(authorizer(entry("t-")), name="t-1")


def test_before_the_first_image_only_super_users_are_allowed() -> None:
    asked = StandardAuthorizer(("User:admin",), allows_unmentioned=True)
    assert not may(asked)
    assert may(asked, principal="User:admin")
    asked.change({})
    assert may(asked)


def test_it_follows_the_metadata() -> None:
    asked = StandardAuthorizer((), allows_unmentioned=False)
    entry_id = uuid.uuid4()
    delta = MetadataDelta(MetadataImage.EMPTY)
    delta.replay(AccessControlEntryRecord(id=entry_id, **entry()._asdict()))
    image = delta.apply(Provenance(0, 0, 0))
    asked.on_metadata_update(delta, image)
    assert may(asked)
    delta = MetadataDelta(image)
    delta.replay(RemoveAccessControlEntryRecord(id=entry_id))
    asked.on_metadata_update(delta, delta.apply(Provenance(1, 0, 0)))
    assert not may(asked)


def test_operations_of_a_newer_kafka_disturb_nothing() -> None:
    newer = entry()._replace(operation=99, permission_type=PermissionType.ALLOW)
    asked = authorizer(newer, newer._replace(permission_type=9), newer._replace(operation=-1))
    assert not may(asked)


def config(**properties: str) -> NodeConfig:
    return NodeConfig(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
            **{name.replace("_", "."): text for name, text in properties.items()},
        }
    )


def test_which_authorizer_a_node_has() -> None:
    assert type(StandardAuthorizer.of(config())) is Authorizer
    made = StandardAuthorizer.of(
        config(authorizer_class_name=STANDARD, super_users=" User:admin ;User:b;;")
    )
    assert isinstance(made, StandardAuthorizer)
    assert made.super_users == {"User:admin", "User:b"}
    assert not made.allows_unmentioned
    nodes = StandardAuthorizer.of(
        config(authorizer_class_name=STANDARD, moldau_node_principals="User:kafka-1")
    )
    cluster = (Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    assert nodes.authorize("User:kafka-1", HOST, *cluster)
    assert not nodes.authorize("User:kafka-2", HOST, *cluster)
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
        config(authorizer_class_name="x.Y")


def test_nothing_is_kept_of_entries_that_are_gone() -> None:
    """Not of what makes finding prefixes quick either, however often they come and go."""
    asked = authorizer()
    names = ["", "a", "ab", "abc", "abcd" * 4, "abcd" * 5, "x" * 16]
    for _ in range(2):
        ids = [uuid.uuid4() for _ in range(2 * len(names))]
        prefixed = [entry(name, pattern=PatternType.PREFIXED) for name in names]
        literal = [entry(name) for name in names]
        asked.change(dict(zip(ids, [*prefixed, *literal], strict=True)))
        (patterns,) = asked._patterns.values()
        assert patterns._spans == (0, 1, 2, 16)
        assert sum(map(len, patterns._lengths.values())) == len(names)
        asked.change(dict.fromkeys(ids))
        assert asked._patterns == {}
        (mentioned,) = asked._mentioned.values()
        assert not mentioned
        assert (mentioned._spans, mentioned._lengths) == ((), {})


def test_decisions_are_logged_by_the_clock_of_the_node() -> None:
    clock = ManualClock()
    made = StandardAuthorizer.of(config(authorizer_class_name=STANDARD), clock)
    assert made.log is not None
    assert made.log._denied._clock is clock


def test_an_entry_for_every_operation_reaches_each_of_them() -> None:
    every = authorizer(entry(operation=Operation.ALL))
    assert all(may(every, operation) for operation in OPERATIONS)
    assert not may(authorizer(entry(operation=Operation.UNKNOWN)), Operation.READ)
