"""`moldau topics diff` and `apply`: the way from what a cluster has to what a file says.

Owns the plan, and its order: topics and partitions, configurations, ACLs that are added before
those that go, quotas, topics that go. Must not read files. Invariants: nothing is changed before
everything has been checked, by the cluster too where its API can, and before the plan was agreed
to; a topic goes only when `--prune` names it; what has been applied is nothing to change the next
time.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from moldau import client
from moldau.cli.acls import kind_word
from moldau.cli.asking import Yes, ask_first, contents_text, is_internal
from moldau.cli.cluster_files import DEFAULT, Wanted, WantedTopic, read_wanted
from moldau.cli.completion import complete_topics
from moldau.cli.options import AsJson, ClusterAccess, raise_first
from moldau.cli.output import fail, print_json, say, warn
from moldau.client.admin.security import AclBinding, AclFilter, QuotaEntity
from moldau.config.definition import ConfigSource
from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.text import did_you_mean

ADDED: Final = "+"
CHANGED: Final = "~"
REMOVED: Final = "-"
WORDS: Final = {ADDED: "add", CHANGED: "change", REMOVED: "remove"}
DIFFERENT: Final = 1
TROUBLE: Final = 2
PARTITIONS: Final = "partitions"
FACTOR: Final = "replication-factor"

File = Annotated[Path, "FILE", "The file: topics, brokers, acls, quotas (docs/cluster-files.md)."]
Prune = Annotated[
    list[str] | None, "--prune TOPIC", complete_topics, "A topic to delete; may be repeated."
]
Call = Callable[[client.Admin], Awaitable[object]]


class Detail(NamedTuple):
    """One value of something; None for one that it does not have."""

    name: str
    before: str | None
    after: str | None

    def line(self) -> str:
        if self.before is None:
            return f"+ {self.name}: {self.after}"
        if self.after is None:
            return f"- {self.name}: {self.before}"
        return f"~ {self.name}: {self.before} -> {self.after}"


class Step(NamedTuple):
    """A change of one thing: what the cluster checks, where it can, and what is done."""

    mark: str
    kind: str
    name: str
    details: tuple[Detail, ...]
    do: Call
    check: Call | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def diff(access: ClusterAccess, file: File, prune: Prune = None, as_json: AsJson = False) -> None:
    """Show how the cluster differs from a file.

    The status is 0 without a difference, 1 with some, 2 when that cannot be said.
    """
    wanted = read_wanted(file)
    try:
        with access.asking(client.Admin) as (admin, loop):
            steps = loop.run(_planned(admin, wanted, prune or []))
    except SystemExit as end:
        raise SystemExit(TROUBLE if end.code else 0) from None
    _show(steps, as_json=as_json)
    if steps:
        raise typer.Exit(DIFFERENT)


def apply(
    access: ClusterAccess,
    file: File,
    prune: Prune = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make the cluster what a file says, after showing the plan.

    What the file does not name stays as it is. Topics are deleted only by --prune.
    """
    wanted = read_wanted(file)
    with access.asking(client.Admin) as (admin, loop):
        steps = loop.run(_planned(admin, wanted, prune or []))
        _show(steps, as_json=as_json)
        if not steps:
            return
        sys.stdout.flush()
        ask_first(f"make these changes: {_summary(steps)}", yes=yes)
        done_count = loop.run(_carried_out(admin, steps))
    if not as_json:
        say(f"applied: {done_count} of {len(steps)}")


async def _carried_out(admin: client.Admin, steps: list[Step]) -> int:
    """Do all of it; ends the command at the first step that fails."""
    for index, step in enumerate(steps):
        try:
            await step.do(admin)
        except client.KafkaError as error:
            fail(f"{step}: {error}; {index} of {len(steps)} changes are made, apply it again")
    return len(steps)


# -- what is shown ---------------------------------------------------------------------------------


def _show(steps: list[Step], *, as_json: bool) -> None:
    if as_json:
        print_json([_document(each) for each in steps])
        return
    for step in steps:
        say(f"{step.mark} {step}")
        for detail in step.details:
            say(f"    {detail.line()}")
    say(_summary(steps) if steps else "nothing to change")


def _document(step: Step) -> dict[str, object]:
    details = [detail._asdict() for detail in step.details]
    return {
        "change": WORDS[step.mark],
        "kind": step.kind,
        "name": step.name,
        "details": details,
    }


def _summary(steps: Iterable[Step]) -> str:
    marks = [each.mark for each in steps]
    counts = [f"{marks.count(mark)} to {word}" for mark, word in WORDS.items() if mark in marks]
    return ", ".join(counts)


# -- the plan --------------------------------------------------------------------------------------


async def _planned(admin: client.Admin, wanted: Wanted, pruned: list[str]) -> list[Step]:
    """The steps, all of which have been checked. Exits with status 1 when something cannot be done,
    after a line for each problem. Raises: KafkaError
    """
    known = await admin.list_topics(include_internal=True)
    problems = list(_refused_prunes(wanted, pruned, known))
    names = [each for each in wanted.topics if each in known]
    topics = await admin.describe_topics(names)
    brokers = {
        name: client.ConfigResource(
            client.ConfigResourceType.BROKER, "" if name == DEFAULT else name
        )
        for name in wanted.brokers
    }
    of_topics = {
        name: client.ConfigResource(client.ConfigResourceType.TOPIC, name) for name in names
    }
    resources = [*brokers.values(), *of_topics.values()]
    configs = await admin.describe_configs(resources) if resources else {}
    steps: list[Step] = []
    for name, topic in wanted.topics.items():
        if name in topics:
            resource = of_topics[name]
            steps += _changed_topic(topic, topics[name], resource, configs[resource], problems)
        else:
            steps.append(_new_topic(name, topic))
    for name, resource in brokers.items():
        steps += _changed_broker(name, wanted.brokers[name], resource, configs[resource], problems)
    steps += await _acl_steps(admin, wanted.acls)
    steps += await _quota_steps(admin, wanted.quotas)
    steps += await _prune_steps(admin, [each for each in dict.fromkeys(pruned) if each in known])
    for step in steps:
        if step.check is not None:
            try:
                await step.check(admin)
            except client.KafkaError as error:
                if error.retriable or isinstance(error, client.RequestTimeout):
                    raise
                problems.append(f"{step}: {error}")
    if problems:
        for problem in problems:
            warn(problem)
        raise SystemExit(1)
    return steps


def _refused_prunes(wanted: Wanted, pruned: list[str], known: list[str]) -> Iterator[str]:
    for name in pruned:
        if name in wanted.topics:
            yield f"--prune {name}: {wanted.reading.file_name} has this topic"
        elif is_internal(name):
            yield f"--prune {name}: an internal topic is not deleted here"
        elif name not in known and (hint := did_you_mean(name, known)):
            yield f"--prune {name}: there is no such topic{hint}"


def _new_topic(name: str, topic: WantedTopic) -> Step:
    configs = topic.configs or {}
    new = client.NewTopic(
        name, topic.partition_count or -1, topic.replication_factor or -1, configs
    )
    counts = {PARTITIONS: topic.partition_count, FACTOR: topic.replication_factor}
    details = [
        *(Detail(key, None, str(count or "(default)")) for key, count in counts.items()),
        *(Detail(key, None, value) for key, value in sorted(configs.items())),
    ]
    return Step(
        *(ADDED, "topic", name, tuple(details)),
        do=lambda admin: admin.create_topics([new]),
        check=lambda admin: admin.create_topics([new], validate_only=True),
    )


def _changed_topic(
    topic: WantedTopic,
    now: client.TopicDescription,
    resource: client.ConfigResource,
    configs: Mapping[str, client.ConfigEntry],
    problems: list[str],
) -> Iterator[Step]:
    """Its new partitions, and its configuration."""

    def refuse(key: str, text: str) -> None:
        section = topic.section
        path = section.key(key) if key else section.path
        where = f"{section.reading.file_name}:{section.line_of(key)}: {path}"
        problems.append(f"{where}: {text}")

    count, wanted_count = len(now.partitions), topic.partition_count
    if now.is_internal:
        refuse("", "an internal topic is not changed here")
    if wanted_count is not None and wanted_count < count:
        refuse(PARTITIONS, f"{wanted_count}, and there are {count}; partitions can only grow")
    elif wanted_count is not None and wanted_count > count:
        grown = {now.name: client.NewPartitions(wanted_count)}
        yield Step(
            *(CHANGED, "topic", now.name),
            (Detail(PARTITIONS, str(count), str(wanted_count)),),
            do=lambda admin: admin.create_partitions(grown),
            check=lambda admin: admin.create_partitions(grown, validate_only=True),
        )
    factors = {len(each.replicas) for each in now.partitions}
    if topic.replication_factor is not None and factors != {topic.replication_factor}:
        text = " and ".join(map(str, sorted(factors)))
        command = f"moldau topics reassign execute {now.name} --replication-factor"
        refuse(FACTOR, f"it is {text}; `{command} {topic.replication_factor}` moves replicas")
    if topic.configs is not None:
        own = _own(configs, ConfigSource.DYNAMIC_TOPIC_CONFIG)
        yield from _config_steps("topic", now.name, resource, own, topic.configs)


def _changed_broker(
    name: str,
    wanted: Mapping[str, str | None],
    resource: client.ConfigResource,
    configs: Mapping[str, client.ConfigEntry],
    problems: list[str],
) -> Iterator[Step]:
    source = ConfigSource.DYNAMIC_BROKER_CONFIG
    if name == DEFAULT:
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    own = {key: value for key, value in _own(configs, source).items() if key in wanted}
    for key, value in own.items():
        if value is None:
            problems.append(
                f"brokers.{name}.{key}: brokers do not show this value, so that it cannot be "
                "compared; set it by `moldau configs alter brokers`"
            )
    changed = {key: value for key, value in wanted.items() if value is not None}
    yield from _config_steps("broker", name, resource, own, changed)


def _own(configs: Mapping[str, client.ConfigEntry], source: ConfigSource) -> dict[str, str | None]:
    """What is set on the thing itself; None for what brokers do not show."""
    return {
        key: None if entry.sensitive else entry.value
        for key, entry in configs.items()
        if entry.source == source
    }


def _config_steps(
    kind: str,
    name: str,
    resource: client.ConfigResource,
    own: Mapping[str, str | None],
    wanted: Mapping[str, str],
) -> Iterator[Step]:
    details = _details(own, wanted)
    if not details:
        return
    delete = client.ConfigOperation.DELETE
    changes = {
        resource: [
            client.ConfigChange(each.name, each.after)
            if each.after is not None
            else client.ConfigChange(each.name, None, delete)
            for each in details
        ]
    }
    yield Step(
        *(CHANGED, kind, name, details),
        do=lambda admin: admin.alter_configs(changes),
        check=lambda admin: admin.alter_configs(changes, validate_only=True),
    )


def _details(before: Mapping[str, str | None], after: Mapping[str, str]) -> tuple[Detail, ...]:
    return tuple(
        Detail(key, before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


# -- ACLs, quotas, topics that go ------------------------------------------------------------------


async def _acl_steps(admin: client.Admin, wanted: Mapping[str, set[AclBinding]]) -> list[Step]:
    added, removed = [], []
    for principal, bindings in wanted.items():
        now = set(await admin.describe_acls(AclFilter(principal=principal)))
        added += sorted(bindings - now, key=_acl_text)
        removed += sorted(now - bindings, key=_acl_text)
    return [
        *(Step(ADDED, "acl", _acl_text(each), (), _acl_added(each)) for each in added),
        *(Step(REMOVED, "acl", _acl_text(each), (), _acl_removed(each)) for each in removed),
    ]


def _acl_text(acl: AclBinding) -> str:
    host = "" if acl.host == "*" else f" from {acl.host}"
    prefix = " and all that begin so" if acl.pattern_type == PatternType.PREFIXED else ""
    permission = kind_word(PermissionType, acl.permission).lower()
    operation = kind_word(Operation, acl.operation)
    resource = kind_word(ResourceType, acl.resource_type)
    return (
        f"{acl.principal} {permission} {operation} on {resource} {acl.resource_name}{prefix}{host}"
    )


def _acl_added(acl: AclBinding) -> Call:
    return lambda admin: admin.create_acls([acl])


def _acl_removed(acl: AclBinding) -> Call:
    only = AclFilter(
        *(acl.resource_type, acl.resource_name, acl.principal, acl.operation),
        *(acl.permission, acl.host, acl.pattern_type),
    )
    return lambda admin: admin.delete_acls([only])


async def _quota_steps(
    admin: client.Admin, wanted: Mapping[QuotaEntity, Mapping[str, float]]
) -> list[Step]:
    steps = []
    for entity, values in wanted.items():
        found = await admin.describe_client_quotas(dict(entity), strict=True)
        now: dict[str, float] = next(iter(found.values()), {})
        details = _details(
            {key: f"{value:.15g}" for key, value in now.items()},
            {key: f"{value:.15g}" for key, value in values.items()},
        )
        if details:
            changes = {entity: {each.name: values.get(each.name) for each in details}}
            name = " ".join(f"{kind} {part or '(default)'}" for kind, part in entity)
            mark = ADDED if not now else CHANGED if values else REMOVED
            steps.append(Step(mark, "quotas", name, details, *_quotas_changed(changes)))
    return steps


def _quotas_changed(changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> tuple[Call, Call]:
    async def change(admin: client.Admin, **options: Any) -> None:
        raise_first((await admin.alter_client_quotas(changes, **options)).values())

    return change, lambda admin: change(admin, validate_only=True)


async def _prune_steps(admin: client.Admin, names: list[str]) -> list[Step]:
    topics = await admin.describe_topics(names)
    contents = {name: await contents_text(admin, {name: topics[name]}) for name in topics}
    return [
        Step(
            *(REMOVED, "topic", name, (Detail("contents", contents[name], None),)),
            do=_topic_deleted(name),
        )
        for name in names
    ]


def _topic_deleted(name: str) -> Call:
    return lambda admin: admin.delete_topics([name])
