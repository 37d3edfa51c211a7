"""`moldau groups`: list, describe, delete, delete offsets; `reset-offsets` is in `group_offsets`.

Invariant: a figure that is not known (a partition without a leader, a topic that is gone) is left
open in its row, and hides no other row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from moldau import client
from moldau.cli.asking import Yes, ask_first, counted, is_asked, names_text, refuse_unknown
from moldau.cli.completion import complete_groups
from moldau.cli.group_offsets import reset_offsets
from moldau.cli.options import (
    AsJson,
    ClusterAccess,
    GroupChoice,
    Topics,
    parse_topics,
    value_of,
)
from moldau.cli.output import complain, fail, print_json, print_rows, print_table, say
from moldau.client.admin.groups import GroupCalls
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import by_topic
from moldau.text import did_you_mean

app = typer.Typer()
STATES: Final = (
    *("Empty", "Stable", "PreparingRebalance", "CompletingRebalance"),
    *("Assigning", "Reconciling", "NotReady", "Dead"),
)
TYPES: Final = ("classic", "consumer", "share", "streams")
"""The types in Kafka's words, as STATES are."""


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition that a group has committed an offset of, or reads."""

    partition: client.TopicPartition
    committed: client.CommittedOffset | None
    log_end_offset: int | None
    member: client.GroupMember | None

    @property
    def lag(self) -> int | None:
        """How many offsets lie between what was committed and the high watermark."""
        if self.committed is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.committed.offset


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group with its rows."""

    group: client.GroupDescription
    rows: tuple[OffsetRow, ...]


@app.command("describe")
def describe(
    access: ClusterAccess,
    groups: GroupChoice,
    members: Annotated[bool, "Show the group's members instead of its offsets."] = False,
    state: Annotated[bool, "Show the group's state instead of its offsets."] = False,
    verbose: Annotated[
        bool, "Show leader epochs, assignments and epochs of the group too."
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the offsets, lag, members and state of groups.

    --json shows all of it at once.
    """
    groups.check()
    if members and state:
        fail("give --members or --state, not both", status=2)
    needs_offsets = as_json or not (members or state)
    with access.asking(client.Admin) as (admin, loop):
        chosen = loop.run(groups.found(admin))
        outcome = loop.run(described_groups(admin, chosen, with_offsets=needs_offsets))
    found = [each for each in outcome.values() if isinstance(each, DescribedGroup)]
    if as_json:
        print_json([document(each) for each in found])
    elif state:
        _print_states(found, verbose)
    else:
        for each in found:
            (_print_members if members else _print_offsets)(each, verbose)
    complain(outcome.values())


app.command("reset-offsets")(reset_offsets)


async def described_groups(
    admin: client.Admin, group_ids: Iterable[str], *, with_offsets: bool
) -> dict[str, DescribedGroup | client.KafkaError]:
    """Each group, or the error why it cannot be described. Raises: KafkaError"""
    described = await admin.describe_groups(list(group_ids))
    outcome: dict[str, DescribedGroup | client.KafkaError] = {
        group_id: each if isinstance(each, client.KafkaError) else DescribedGroup(each, ())
        for group_id, each in described.items()
    }
    if not with_offsets:
        return outcome
    known = {
        group_id: each
        for group_id, each in described.items()
        if isinstance(each, client.GroupDescription)
    }
    offsets = await admin.list_group_offsets(known)
    wanted: dict[client.TopicPartition, None] = {}
    for group_id, group in known.items():
        committed = offsets[group_id]
        if isinstance(committed, client.KafkaError):
            outcome[group_id] = committed
        else:
            wanted.update(dict.fromkeys(_partitions(group, committed)))
    ends = await admin.list_partition_offsets(dict.fromkeys(wanted, client.OffsetSpec.LATEST))
    for group_id, group in known.items():
        committed = offsets[group_id]
        if not isinstance(committed, client.KafkaError):
            outcome[group_id] = DescribedGroup(group, tuple(offset_rows(group, committed, ends)))
    return outcome


def _partitions(
    group: client.GroupDescription,
    committed: Mapping[client.TopicPartition, client.CommittedOffset],
) -> list[client.TopicPartition]:
    assigned = (partition for member in group.members for partition in member.assignment)
    return sorted({*committed, *assigned})


def offset_rows(
    group: client.GroupDescription,
    committed: Mapping[client.TopicPartition, client.CommittedOffset],
    ends: Mapping[client.TopicPartition, client.PartitionOffset | client.KafkaError],
) -> Iterator[OffsetRow]:
    owners = {partition: member for member in group.members for partition in member.assignment}
    for partition in _partitions(group, committed):
        end = ends.get(partition)
        yield OffsetRow(
            partition,
            committed.get(partition),
            end.offset if isinstance(end, client.PartitionOffset) else None,
            owners.get(partition),
        )


def document(described: DescribedGroup) -> dict[str, object]:
    group, lags = described.group, [row.lag for row in described.rows if row.lag is not None]
    return {
        "group_id": group.group_id,
        "type": group.group_type,
        "protocol": group.protocol_type,
        "state": group.state,
        "assignor": group.assignor or None,
        "coordinator": {
            "broker_id": group.coordinator.node_id,
            "address": f"{group.coordinator.host}:{group.coordinator.port}",
        },
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "lag": sum(lags) if lags else None,
        "members": [_member_document(member) for member in group.members],
        "offsets": [_offset_document(row) for row in described.rows],
    }


def _offset_document(row: OffsetRow) -> dict[str, object]:
    committed, member = row.committed, row.member
    known_epoch = committed is not None and committed.leader_epoch >= 0
    return {
        **row.partition._asdict(),
        "current_offset": committed.offset if committed else None,
        "leader_epoch": committed.leader_epoch if committed and known_epoch else None,
        "metadata": committed.metadata if committed else None,
        "log_end_offset": row.log_end_offset,
        "lag": row.lag,
        "member_id": member.member_id if member else None,
        "host": member.host if member else None,
        "client_id": member.client_id if member else None,
    }


def _member_document(member: client.GroupMember) -> dict[str, object]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "rack": member.rack_id,
        "type": member.member_type,
        "epoch": member.member_epoch,
        "subscribed_topics": member.subscribed_topics,
        "subscribed_regex": member.subscribed_regex,
        "assignment": by_topic(sorted(member.assignment)),
        "target_assignment": None if member.target is None else by_topic(sorted(member.target)),
    }


def _assignment_text(partitions: Iterable[client.TopicPartition] | None) -> str | None:
    """As Kafka's tool writes it: `orders:0,1;payments:3`."""
    if partitions is None:
        return None
    topics = by_topic(sorted(partitions)).items()
    return ";".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in topics) or None


def _title(group: client.GroupDescription) -> str:
    empty = "" if group.members else ", no active members"
    return f"{group.group_id}: {group.group_type}, {group.state}{empty}"


def _print_offsets(described: DescribedGroup, verbose: bool) -> None:
    names = (
        *("topic", "partition", *(("leader_epoch",) if verbose else ()), "current_offset"),
        *("log_end_offset", "lag", *(("member_id",) if verbose else ()), "host", "client_id"),
    )
    print_table(
        [name.removesuffix("_id").replace("_", " ") for name in names],
        ([row[name] for name in names] for row in map(_offset_document, described.rows)),
        title=_title(described.group),
    )


def _print_members(described: DescribedGroup, verbose: bool) -> None:
    group = described.group
    details = (
        ("instance", "epoch", "assignment", "target assignment", "subscription") if verbose else ()
    )

    def row(member: client.GroupMember) -> Iterator[object]:
        yield from (member.member_id, member.host, member.client_id, len(member.assignment))
        if verbose:
            yield member.group_instance_id
            yield member.member_epoch
            yield _assignment_text(member.assignment)
            yield _assignment_text(member.target)
            yield member.subscribed_regex or ",".join(member.subscribed_topics) or None

    print_table(
        ("member", "host", "client", "partitions", *details),
        (row(member) for member in group.members),
        title=_title(group),
    )


def _print_states(found: Iterable[DescribedGroup], verbose: bool) -> None:
    details = ("type", "group epoch", "assignment epoch") if verbose else ()

    def row(group: client.GroupDescription) -> Iterator[object]:
        where = group.coordinator
        yield group.group_id
        yield f"{where.host}:{where.port} ({where.node_id})"
        yield from (group.assignor or None, group.state, len(group.members))
        if verbose:
            yield from (group.group_type, group.group_epoch, group.assignment_epoch)

    print_table(
        ("group", "coordinator", "assignment strategy", "state", "members", *details),
        (row(each.group) for each in found),
    )


@app.command("delete-offsets")
def delete_offsets(
    access: ClusterAccess,
    group_id: Annotated[str, "GROUP", complete_groups, "The group."],
    topics: Topics = None,
    yes: Yes = False,
) -> None:
    """Delete committed offsets of topics that no member reads."""
    wanted = parse_topics(topics)
    if not wanted:
        fail("which topics? give --topic", status=2)
    with access.asking(client.Admin) as (admin, loop):
        committed = value_of(loop.run(admin.list_group_offsets([group_id]))[group_id])
        if not committed:
            loop.run(_check_groups(admin, [group_id]))
            fail(f"nothing was changed: {group_id} has no committed offsets")
        refuse_unknown(f"offset of {group_id} for", wanted, {each.topic for each in committed})
        chosen = [
            each
            for each in sorted(committed)
            if each.topic in wanted and each.partition in (wanted[each.topic] or {each.partition})
        ]
        named = [
            str(client.TopicPartition(topic, index))
            for topic, indexes in wanted.items()
            for index in sorted(indexes or ())
        ]
        refuse_unknown(f"offset of {group_id} for", named, map(str, committed))
        offsets = counted(len(chosen), "committed offset")
        ask_first(f"delete {offsets} of {group_id}: {names_text([*map(str, chosen)])}", yes=yes)
        outcome = loop.run(admin.delete_group_offsets(group_id, chosen))
    for partition, error in outcome.items():
        if error is None:
            say(f"{group_id} has no offset of {partition} any more")
    complain(outcome.values())


def _words_of(known: tuple[str, ...], given: list[str] | None, option: str) -> list[str]:
    """Words in any case of letters, also several with commas between them, as kafka-consumer-groups
    takes them; exits with status 2 for another one.
    """
    by_lower = {word.lower(): word for word in known}
    found = []
    for text in (part.strip() for each in given or () for part in each.split(",")):
        if text.lower() not in by_lower:
            near = did_you_mean(text, known)
            fail(f"{option} {text!r} is none of {', '.join(known)}{near}", status=2)
        found.append(by_lower[text.lower()])
    return found


@app.command("list")
def list_groups(
    access: ClusterAccess,
    states: Annotated[
        list[str] | None,
        "--state",
        f"Only groups in this state: {', '.join(STATES)}; may be repeated.",
    ] = None,
    types: Annotated[
        list[str] | None,
        "--type",
        f"Only groups of this type: {', '.join(TYPES)}; may be repeated.",
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the groups, with type, protocol and state."""
    chosen_states = _words_of(STATES, states, "--state")
    chosen_types = _words_of(TYPES, types, "--type")
    rows = [
        {
            "group_id": each.group_id,
            "type": each.group_type,
            "protocol": each.protocol_type,
            "state": each.state,
            "coordinator": each.coordinator_id,
        }
        for each in access.ask(
            GroupCalls,
            lambda groups: groups.list_groups(states=chosen_states, group_types=chosen_types),
        )
    ]
    print_rows(("group", "type", "protocol", "state", "coordinator"), rows, as_json=as_json)


@app.command("delete")
def delete(access: ClusterAccess, groups: GroupChoice, yes: Yes = False) -> None:
    """Delete groups without members, and their offsets."""
    groups.check()
    with access.asking(client.Admin) as (admin, loop):
        chosen = loop.run(groups.found(admin))
        if not chosen:
            say("there are no groups")
            return
        if not groups.all_groups:
            loop.run(_check_groups(admin, chosen))
        if is_asked(yes=yes):
            offsets = loop.run(admin.list_group_offsets(chosen)).values()
            count = sum(len(each) for each in offsets if not isinstance(each, client.KafkaError))
            which = "group" if len(chosen) == 1 else f"{len(chosen)} groups:"
            goes = counted(count, "committed offset")
            ask_first(f"delete {which} {names_text(chosen)} ({goes})", yes=yes)
        outcome = loop.run(admin.delete_groups(chosen))
    for group_id, error in outcome.items():
        if error is None:
            say(f"deleted {group_id}")
    complain(outcome.values())


async def _check_groups(admin: client.Admin, group_ids: list[str]) -> None:
    """Exits with status 1, and the nearest ids, unless all of these groups exist. Raises:
    KafkaError
    """
    described = await admin.describe_groups(group_ids)
    missing = [
        group_id
        for group_id, each in described.items()
        if isinstance(each, client.KafkaError) and each.code == ErrorCode.GROUP_ID_NOT_FOUND
    ]
    if missing:  # or of a kind that is not described
        listed = await admin.list_groups()
        refuse_unknown("group", missing, {each.group_id for each in listed})
