"""`moldau acls`: list, create and delete access control entries, and say which one decides.

Invariant: `check` answers what the brokers' authorizer decides for the same entries and settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn, TypeVar
from uuid import UUID

import typer

from moldau import client
from moldau.addresses import canonical_address
from moldau.cli.asking import Yes, ask_first, is_asked, names_text
from moldau.cli.options import AsJson, ClusterAccess
from moldau.cli.output import fail, print_json, print_rows, say
from moldau.client.admin.security import AclBinding, AclFilter, SecurityCalls
from moldau.config.principals import KEY, NodePrincipals
from moldau.protocol.access_control import (
    CLUSTER_RESOURCE_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.text import did_you_mean

if TYPE_CHECKING:
    from moldau.server.standard_authorizer import StandardAuthorizer

app = typer.Typer()
#: By the authorizer's name of the rule, where no entry decides.
REASONS: Final = {
    "SuperUser": "super.users names {0}",
    "NodePrincipal": f"{KEY} has {{0}}, and nodes need it",
    "NoAclFound": "no entry is about the resource, and allow.everyone.if.no.acl.found=true",
    "DefaultDeny": "no entry allows it",
}
Kind = TypeVar("Kind", bound=IntEnum)

Words = list[str] | None
NamedResource = tuple[ResourceType, str]


@dataclass(frozen=True, slots=True)
class Resources:
    """The options that name resources, any number of each kind."""

    topic: Annotated[Words, "A topic; may be repeated."] = None
    group: Annotated[Words, "A group; may be repeated."] = None
    transactional_id: Annotated[Words, "A transactional id; may be repeated."] = None
    token: Annotated[Words, "--delegation-token", "A delegation token's id; may be repeated."] = (
        None
    )
    user: Annotated[Words, "A user whose tokens are meant, User:NAME; may be repeated."] = None
    cluster: Annotated[bool, "The cluster itself."] = False

    def named(self) -> list[NamedResource]:
        """All of them; exits with status 2 for an empty name."""
        given = {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.transactional_id,
            ResourceType.DELEGATION_TOKEN: self.token,
            ResourceType.USER: [_principal(each) for each in self.user or []],
            ResourceType.CLUSTER: [CLUSTER_RESOURCE_NAME] if self.cluster else [],
        }
        found = [(kind, name) for kind, names in given.items() for name in names or []]
        if any(not name for _, name in found):
            fail("a resource has an empty name; '*' stands for all of its kind", status=2)
        return found


@dataclass(frozen=True, slots=True)
class Which:
    """The options that say what entries are like, apart from their resources."""

    principal: Annotated[str | None, "User:NAME, or NAME alone."] = None
    host: Annotated[str | None, "An IP address, or '*'."] = None
    operation: Annotated[str | None, "Read, Write, DescribeConfigs, …."] = None
    permission: Annotated[str | None, "allow or deny."] = None
    pattern: Annotated[
        str | None, "literal, prefixed, or match: also those that apply to a name by prefix or '*'."
    ] = None

    def filters(self, resources: list[NamedResource]) -> list[AclFilter]:
        """One for each resource, or one without; exits with status 2 for a word that is none."""
        known = [each for each in Operation if each > Operation.ANY]
        patterns = (PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)
        permissions = (PermissionType.ALLOW, PermissionType.DENY)
        wanted = AclFilter(
            principal=None if self.principal is None else _principal(self.principal),
            host=self.host,
            operation=_named(self.operation, known, "--operation", Operation.ANY),
            permission=_named(self.permission, permissions, "--permission", PermissionType.ANY),
            pattern_type=_named(self.pattern, patterns, "--pattern", PatternType.ANY),
        )
        return [
            replace(wanted, resource_type=kind, resource_name=name) for kind, name in resources
        ] or [wanted]


def _principal(text: str) -> str:
    """`User:alice` of `alice`; other types are left as they are, as brokers may know them."""
    return text if ":" in text else f"User:{text}"


def word(member: IntEnum) -> str:
    """As Kafka's tools write it: DescribeConfigs."""
    return "".join(part.capitalize() for part in member.name.split("_"))


def kind_named(text: str, kinds: Iterable[Kind]) -> Kind | None:
    """The one of these that a text names, whatever its case."""
    wanted = text.lower().replace("_", "").replace("-", "")
    return next((member for member in kinds if word(member).lower() == wanted), None)


def _named(
    text: str | None, kinds: Iterable[Kind], option: str, default: Kind | None = None
) -> Kind:
    """The one of these that a text names; exits with status 2 where there is none."""
    if text is None:
        assert default is not None, "required"
        return default
    members = list(kinds)
    if (member := kind_named(text, members)) is not None:
        return member
    fail(f"{option} {text!r} is none of {', '.join(map(word, members))}", status=2)


def _operations_of(resource_type: ResourceType) -> tuple[Operation, ...]:
    return (Operation.ALL, *SUPPORTED_OPERATIONS[resource_type])


def _fields(binding: AclBinding) -> dict[str, str]:
    return {
        "resource": kind_word(ResourceType, binding.resource_type),
        "name": binding.resource_name,
        "pattern": kind_word(PatternType, binding.pattern_type).lower(),
        "principal": binding.principal,
        "host": binding.host,
        "permission": kind_word(PermissionType, binding.permission),
        "operation": kind_word(Operation, binding.operation),
    }


def kind_word(kinds: type[IntEnum], number: int) -> str:
    """The word of a number; a number that a newer cluster has is shown as it is."""
    try:
        return word(kinds(number))
    except ValueError:
        return str(number)


def _rows(bindings: Iterable[AclBinding]) -> list[dict[str, str]]:
    return sorted((_fields(each) for each in bindings), key=lambda row: [*row.values()])


def _print(rows: list[dict[str, str]], *, as_json: bool = False) -> None:
    columns = ("resource", "name", "pattern", "principal", "host", "permission", "operation")
    print_rows(columns, rows, as_json=as_json)


@app.command("list")
def list_all(
    access: ClusterAccess, resources: Resources, which: Which, as_json: AsJson = False
) -> None:
    """List access control entries: all, or those described."""
    filters = which.filters(resources.named())
    found = access.ask(SecurityCalls, lambda admin: _found(admin, filters))
    _print(_rows(found), as_json=as_json)


async def _found(admin: SecurityCalls, filters: list[AclFilter]) -> set[AclBinding]:
    return {each for one in filters for each in await admin.describe_acls(one)}


@app.command("create")
def create(
    access: ClusterAccess,
    resources: Resources,
    allow: Annotated[
        list[str] | None, "A principal that may, '*' for all; may be repeated."
    ] = None,
    deny: Annotated[list[str] | None, "A principal that may not, whatever else allows it."] = None,
    operation: Annotated[
        list[str] | None, "Read, Write, DescribeConfigs, All; may be repeated."
    ] = None,
    host: Annotated[list[str] | None, "An IP address that it is for; all when left out."] = None,
    prefixed: Annotated[bool, "The names are prefixes of names."] = False,
    producer: Annotated[bool, "What a producer needs on --topic, --transactional-id."] = False,
    consumer: Annotated[bool, "What a consumer needs on --topic and --group."] = False,
) -> None:
    """Allow or deny principals operations on resources."""
    named = resources.named()
    if not named:
        fail("on what? give --topic, --group, --transactional-id or --cluster", status=2)
    if not allow and not deny:
        fail("to whom? give --allow or --deny with a principal", status=2)
    if prefixed and any(kind is ResourceType.CLUSTER for kind, _ in named):
        fail("--prefixed does not go with --cluster: it has one name", status=2)
    pairs = _pairs(named, operation, producer=producer, consumer=consumer)
    if producer or consumer:
        _require_whole({kind for kind, _ in named}, "--consumer" if consumer else "--producer")
    who = [
        *((PermissionType.ALLOW, each) for each in allow or []),
        *((PermissionType.DENY, each) for each in deny or []),
    ]
    bindings = [
        AclBinding(
            kind,
            name,
            _principal(principal),
            wanted,
            permission,
            each_host,
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        )
        for (kind, name), wanted in pairs
        for permission, principal in who
        for each_host in host or [WILDCARD]
    ]

    access.ask(SecurityCalls, lambda admin: admin.create_acls(bindings))
    _print(_rows(bindings))


def _require_whole(kinds: Collection[ResourceType], option: str) -> None:
    """Exits with status 2 for a producer without a topic, or a consumer that lacks its group: the
    group's coordinator would refuse it.
    """
    if ResourceType.TOPIC not in kinds:
        fail(f"{option} needs --topic", status=2)
    if option == "--consumer" and ResourceType.GROUP not in kinds:
        fail(
            "--consumer needs --group too: a consumer reads as a member of one ('*': any group); "
            "to read without a group, give --operation Read instead",
            status=2,
        )


def _pairs(
    resources: list[NamedResource], operations: list[str] | None, *, producer: bool, consumer: bool
) -> list[tuple[NamedResource, Operation]]:
    """Each resource with each operation that is to be allowed or denied on it."""
    if not (producer or consumer):
        if not operations:
            fail("what? give --operation, --producer or --consumer", status=2)
        return [
            (resource, _named(each, _operations_of(resource[0]), "--operation"))
            for resource in resources
            for each in operations
        ]
    if operations:
        fail("--operation does not go with --producer and --consumer", status=2)
    needed: dict[ResourceType, set[Operation]] = {}
    if producer:
        topic = {Operation.WRITE, Operation.DESCRIBE, Operation.CREATE}
        needed[ResourceType.TOPIC] = topic
        needed[ResourceType.TRANSACTIONAL_ID] = {Operation.WRITE, Operation.DESCRIBE}
    if consumer:
        topic = needed.get(ResourceType.TOPIC, set())
        needed[ResourceType.TOPIC] = topic | {Operation.READ, Operation.DESCRIBE}
        needed[ResourceType.GROUP] = {Operation.READ}
    for kind, name in resources:
        if kind not in needed:
            fail(f"--producer and --consumer say nothing about {word(kind)} {name}", status=2)
    return [(resource, each) for resource in resources for each in sorted(needed[resource[0]])]


@app.command("delete")
def delete(
    access: ClusterAccess,
    resources: Resources,
    which: Which,
    every_one: Annotated[bool, "--all", "Every entry of the cluster."] = False,
    yes: Yes = False,
) -> None:
    """Delete the access control entries that are described.

    Prints what it has deleted.
    """
    named = resources.named()
    given = named or replace(which, pattern=None) != Which()
    if bool(given) == every_one:
        fail("which ones? give what they are about, or --all", status=2)
    filters = which.filters(named)

    with access.asking(SecurityCalls) as (admin, loop):
        if is_asked(yes=yes):
            found = loop.run(_found(admin, filters))
            if not found:
                loop.run(_refuse(admin, named, which))
            entries = "entry" if len(found) == 1 else f"{len(found)} entries"
            shown = [_text(row) for row in _rows(found)]
            ask_first(f"delete {entries}: {names_text(shown)}", yes=yes)
        deleted = loop.run(admin.delete_acls(filters))
        if not deleted:
            loop.run(_refuse(admin, named, which))
    _print(_rows(set(deleted)))


def _text(row: dict[str, str]) -> str:
    """An entry in a few words: `User:alice may Read Topic flights`."""
    may = "may" if row["permission"] == "Allow" else "may not"
    host = "" if row["host"] == WILDCARD else f" from {row['host']}"
    prefix = " prefixed" if row["pattern"] == "prefixed" else ""
    return (
        f"{row['principal']} {may} {row['operation']}{prefix} {row['resource']} {row['name']}{host}"
    )


async def _refuse(admin: SecurityCalls, named: list[NamedResource], which: Which) -> NoReturn:
    """Exits with status 1: no entry is as described; names that entries have may be near."""
    entries = await admin.describe_acls(AclFilter())
    known = {
        kind: {each.resource_name for each in entries if each.resource_type == kind}
        for kind, _ in named
    }
    near = [did_you_mean(name, known[kind]) for kind, name in named if name not in known[kind]]
    if which.principal is not None:
        principals = {each.principal for each in entries}
        principal = _principal(which.principal)
        near += [did_you_mean(principal, principals)] if principal not in principals else []
    fail(f"no entry is like that{next(filter(None, near), '')}")


@app.command("check")
def check(
    access: ClusterAccess,
    resources: Resources,
    principal: Annotated[str, "--as", "User:NAME, or NAME alone."] = "",
    operation: Annotated[str, "What it wants to do."] = "",
    host: Annotated[str, "The IP address that it comes from."] = "127.0.0.1",
    as_json: AsJson = False,
) -> None:
    """Say who may do what, and which entry decides.

    The status is 1 if it is not allowed.
    """
    named = resources.named()
    if len(named) != 1 or not principal or not operation:
        fail("give --as, --operation and one resource, such as --topic flights", status=2)
    [(kind, name)] = named
    wanted = _named(operation, SUPPORTED_OPERATIONS[kind], "--operation")
    question = Question(_principal(principal), host, wanted, kind, name)
    wanted_entries = AclFilter(kind, name, pattern_type=PatternType.MATCH)
    with access.asking(client.Admin) as (admin, loop):
        bindings = loop.run(admin.describe_acls(wanted_entries))
        settings = loop.run(_settings(admin))
    decision = decide(question, bindings, **settings)
    binding = decision.binding
    if as_json:
        entry = None if binding is None else _fields(binding)
        allowed = {"allowed": decision.is_allowed, "reason": decision.reason, "entry": entry}
        print_json(allowed)
    else:
        verdict = "allowed" if decision.is_allowed else "not allowed"
        say(f"{verdict}: {decision.reason}")
        if binding is not None:
            _print([_fields(binding)])
    if not decision.is_allowed:
        raise typer.Exit(1)


async def _settings(admin: client.Admin) -> dict[str, Any]:
    """What `decide` needs to know of a broker's configuration."""
    brokers = (await admin.describe_cluster()).brokers
    first = str(min(each.node_id for each in brokers))
    resource = client.ConfigResource(client.ConfigResourceType.BROKER, first)
    values = (await admin.describe_configs([resource]))[resource]
    users = (each.strip() for each in (values["super.users"].value or "").split(";"))
    nodes = values.get(KEY)  # Apache Kafka's brokers have none
    return {
        "super_users": frozenset(each for each in users if each),
        "allows_unmentioned": values["allow.everyone.if.no.acl.found"].value == "true",
        "nodes": NodePrincipals((nodes and nodes.value) or ""),
    }


class Question(NamedTuple):
    """What a principal wants to do.

    Attributes:
        host: the client's IP address, in any form.
    """

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    resource_name: str


class Decision(NamedTuple):
    """The answer: allowed or not, the reason in words, and the entry that decides, if one does."""

    is_allowed: bool
    reason: str
    binding: AclBinding | None = None


def decide(
    question: Question,
    bindings: Sequence[AclBinding],
    *,
    super_users: Collection[str],
    allows_unmentioned: bool,
    nodes: NodePrincipals | None = None,
) -> Decision:
    """The decision about one question.

    Args:
        bindings: every entry that may concern the resource; others do no harm.
        super_users: principals that may do all, as the node is configured.
        allows_unmentioned: whether every principal may do what no entry is about.
        nodes: which principals are nodes, as the node is configured.
    """
    asked = question._replace(host=canonical_address(question.host))
    authorizer = _authorizer(bindings, super_users, allows_unmentioned, nodes)
    rule, is_allowed = authorizer.rule(*asked), authorizer.authorize(*asked)
    if rule.entry is None:
        return Decision(is_allowed, REASONS[rule.name].format(question.principal))
    alike = (each for each in bindings if each.permission == rule.entry.permission_type)
    binding = next(each for each in alike if _authorizer([each]).rule(*asked).entry is not None)
    if not is_allowed:
        return Decision(False, "an entry denies it, whatever others allow", binding)
    is_named = binding.operation in (question.operation, Operation.ALL)
    what = "it" if is_named else "what implies it"
    return Decision(True, f"an entry allows {what}", binding)


def _authorizer(
    bindings: Sequence[AclBinding],
    super_users: Collection[str] = (),
    allows_unmentioned: bool = False,
    nodes: NodePrincipals | None = None,
) -> StandardAuthorizer:
    from moldau.metadata.image.security import AccessControlEntry
    from moldau.server.standard_authorizer import StandardAuthorizer

    made = StandardAuthorizer(super_users, allows_unmentioned=allows_unmentioned, nodes=nodes)
    fields = [asdict(each) for each in bindings]
    entries = [
        AccessControlEntry(permission_type=each.pop("permission"), **each) for each in fields
    ]
    made.change({UUID(int=number): each for number, each in enumerate(entries)})
    return made
