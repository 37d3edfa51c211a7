"""`…/security/explain`: who may do what, and which entry of access control decides.

Must not decide for the brokers, whose authorizer does: it is their rules applied to the entries
that the person may describe. Invariant: what may not be seen, such as who the super users are, is
said to be unknown, and never taken for absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from moldau.addresses import canonical_address
from moldau.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    Admin,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    KafkaError,
)
from moldau.console.calls import Call, Reply
from moldau.console.own.gathering import ANSWER_TIMEOUT_MS, known
from moldau.console.own.lists import OWN
from moldau.console.problems import Problem
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import BOOLEAN, STRING, array, named, one_of, record
from moldau.console.v3.acls import acl_fields
from moldau.protocol.access_control import (
    ANY_PRINCIPAL,
    CLUSTER_RESOURCE_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    Operation,
    ResourceType,
)
from moldau.protocol.errors import ErrorCode

SUPER_USERS: Final = "super.users"
ALLOWS_UNMENTIONED: Final = "allow.everyone.if.no.acl.found"
NODES: Final = "moldau.node.principals"
_KEYS: Final = (SUPER_USERS, ALLOWS_UNMENTIONED, NODES)
MAX_TEXT: Final = 32_767
MAX_RULES: Final = 200
"""Entries that are shown, the one that decides among them."""
IMPLYING: Final = {
    AclOperation.DESCRIBE: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
"""What allows an operation beside that itself. A denial implies nothing."""
EXPLANATION: Final = named(
    "Explanation",
    record(
        {
            "is_allowed": BOOLEAN,
            "because": STRING,
            "rules": array(
                record(
                    {
                        **dict.fromkeys(
                            (
                                "resource_type",
                                "resource_name",
                                "pattern_type",
                                "principal",
                                "host",
                                "operation",
                                "permission",
                            ),
                            STRING,
                        ),
                        "decides": BOOLEAN,
                    }
                )
            ),
        }
    ),
)


@dataclass(frozen=True, slots=True)
class Question:
    """What a principal wants to do; the host is an address in its one form."""

    principal: str
    host: str
    operation: AclOperation
    resource_type: AclResourceType
    resource_name: str


@dataclass(frozen=True, slots=True)
class Brokers:
    """How the brokers are configured, as far as that is known.

    Attributes:
        super_users: who may do everything; None where it may not be seen.
        allows_unmentioned: whether all may do what no entry is about; None where it may not be
            seen.
        has_nodes: whether principals of nodes are named, which may do what nodes need.
    """

    super_users: frozenset[str] | None = frozenset()
    allows_unmentioned: bool | None = False
    has_nodes: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision, the reason in words, and the entries about it, the deciding one first."""

    is_allowed: bool
    because: str
    rules: tuple[AclBinding, ...] = ()
    is_decided_by_rule: bool = False


async def explain(call: Call) -> Reply:
    """Who may do what, and why."""
    query = call.query
    kind = ResourceType[query["resource_type"]]
    operation = Operation[query["operation"]]
    name = CLUSTER_RESOURCE_NAME if kind is ResourceType.CLUSTER else query["resource_name"]
    if not name:
        raise Problem(422, "the parameter resource_name is needed")
    if operation not in SUPPORTED_OPERATIONS[kind]:
        known_ones = ", ".join(each.name for each in SUPPORTED_OPERATIONS[kind])
        raise Problem(422, f"with a {kind.name} can be done: {known_ones}")
    host = canonical_address(query["host"])
    question = Question(query["principal"], host, operation, kind, name)
    clients = await call.clients()
    wanted = AclFilter(kind, name, pattern_type=AclPatternType.MATCH)
    try:
        bindings = await clients.admin.describe_acls(wanted)
    except KafkaError as error:
        if error.code is not ErrorCode.SECURITY_DISABLED:
            raise
        free = "The brokers have no authorizer: everyone who reaches them may do everything."
        return Reply({"is_allowed": True, "because": free, "rules": []})
    found = answer(question, bindings, await _configured(clients.admin))
    return Reply(
        {
            "is_allowed": found.is_allowed,
            "because": found.because,
            "rules": [
                {**acl_fields(each), "decides": found.is_decided_by_rule and not index}
                for index, each in enumerate(found.rules[:MAX_RULES])
            ],
        }
    )


def answer(question: Question, bindings: Iterable[AclBinding], brokers: Brokers) -> Answer:
    """The decision about a question.

    Args:
        bindings: every entry that may be about the resource; others do no harm.
    """
    about = [each for each in bindings if _is_about(each, question)]
    rules = [each for each in about if _concerns(each, question)]
    who = question.principal
    if brokers.super_users is not None and who in brokers.super_users:
        return Answer(True, f"{SUPER_USERS} names {who}: super users may do everything.", (*rules,))
    denying = _first(rules, AclPermission.DENY)
    if denying:
        why = "An entry denies it, whatever others allow"
        return Answer(False, f"{why}{_unless(brokers)}.", _led_by(denying, rules), True)
    allowing = _first(rules, AclPermission.ALLOW)
    if allowing:
        is_named = allowing.operation in (question.operation, AclOperation.ALL)
        what = "it" if is_named else f"{_word(allowing.operation)}, which implies it"
        return Answer(True, f"An entry allows {what}.", _led_by(allowing, rules), True)
    if not about and brokers.allows_unmentioned:
        why = f"No entry is about the resource, and {ALLOWS_UNMENTIONED} is true"
        return Answer(True, f"{why}: then everyone may do it.")
    if not about and brokers.allows_unmentioned is None:
        why = (
            f"No entry is about the resource; whether {ALLOWS_UNMENTIONED} is set, you may not see"
        )
        return Answer(False, f"{why}{_unless(brokers)}.")
    return Answer(False, f"No entry allows it{_unless(brokers)}.")


def _is_about(binding: AclBinding, question: Question) -> bool:
    """Whether an entry's pattern stands for the resource."""
    if binding.resource_type != question.resource_type:
        return False
    name = binding.resource_name
    if binding.pattern_type == AclPatternType.PREFIXED:
        return question.resource_name.startswith(name)
    return name in (question.resource_name, WILDCARD)


def _concerns(binding: AclBinding, question: Question) -> bool:
    """Whether an entry that is about the resource says something about the question."""
    if binding.principal not in (question.principal, ANY_PRINCIPAL):
        return False
    if canonical_address(binding.host) not in (question.host, WILDCARD):
        return False
    operations: Collection[int] = (question.operation, AclOperation.ALL)
    if binding.permission == AclPermission.ALLOW:
        operations = (*operations, *IMPLYING.get(question.operation, ()))
    return binding.operation in operations


def _first(rules: Iterable[AclBinding], permission: AclPermission) -> AclBinding | None:
    return next((each for each in rules if each.permission == permission), None)


def _led_by(deciding: AclBinding, rules: Sequence[AclBinding]) -> tuple[AclBinding, ...]:
    return (deciding, *(each for each in rules if each is not deciding))


def _word(operation: int) -> str:
    return operation.name if isinstance(operation, IntEnum) else str(operation)


def _unless(brokers: Brokers) -> str:
    """What is not known, and may make it allowed."""
    found = []
    if brokers.super_users is None:
        found.append(f"{SUPER_USERS} names them, which you may not see")
    if brokers.has_nodes:
        found.append(f"{NODES} names them and nodes need it")
    return f", unless {', or '.join(found)}" if found else ""


async def _configured(admin: Admin) -> Brokers:
    """How one broker is configured: all should be alike."""
    cluster = await admin.describe_cluster()
    first = min((each.node_id for each in cluster.brokers), default=-1)
    resource = ConfigResource(ConfigResourceType.BROKER, str(first))
    asking = admin.describe_configs([resource], keys=_KEYS, timeout_ms=ANSWER_TIMEOUT_MS)
    found = await known(asking)
    if found is None:
        return Brokers(None, None)
    entries = found.get(resource, {})
    users, everyone = (_text(entries.get(key)) for key in (SUPER_USERS, ALLOWS_UNMENTIONED))
    super_users = None if users is None else {each.strip() for each in users.split(";")} - {""}
    return Brokers(
        None if super_users is None else frozenset(super_users),
        None if everyone is None else everyone.lower() == "true",
        bool(_text(entries.get(NODES))),
    )


def _text(entry: ConfigEntry | None) -> str | None:
    """A key's value, "" where it is not set; None where it is hidden, as Apache Kafka hides keys
    that are its authorizer's own.
    """
    if entry is None:
        return ""
    return None if entry.sensitive else (entry.value or "")


def _parameter(name: str, description: str, *, is_required: bool = True) -> Parameter:
    schema = {**STRING, "maxLength": MAX_TEXT, **({"minLength": 1} if is_required else {})}
    return Parameter(name, description, schema, is_required=is_required)


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{OWN}/security/explain",
        handler=explain,
        name="explainAccess",
        summary="Who may do what, and which entry of access control decides",
        needs="Describe on the cluster; DescribeConfigs on it to know super users",
        query=(
            _parameter("principal", "Who: User:NAME."),
            Parameter(
                "host",
                "The IP address that it comes from.",
                {**STRING, "minLength": 1, "maxLength": MAX_TEXT},
                default="127.0.0.1",
            ),
            Parameter(
                "operation",
                "What it wants to do.",
                one_of(*sorted({op.name for ops in SUPPORTED_OPERATIONS.values() for op in ops})),
                is_required=True,
            ),
            Parameter(
                "resource_type",
                "With what kind of resource.",
                one_of(*(each.name for each in SUPPORTED_OPERATIONS)),
                is_required=True,
            ),
            _parameter("resource_name", "Its name; not of the cluster.", is_required=False),
        ),
        answer=EXPLANATION,
    ),
)
