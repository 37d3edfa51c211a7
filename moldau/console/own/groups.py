"""`…/groups`: every group that the cluster names, of every kind; one is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from moldau.client import GroupDescription, GroupListing, KafkaError
from moldau.console.calls import Call, Reply
from moldau.console.clients import Clients
from moldau.console.own.brokers import DONE
from moldau.console.own.commands import command
from moldau.console.own.gathering import (
    ANSWER_TIMEOUT_MS,
    GROUPS_AT_ONCE,
    Committed,
    committed_by,
    ends_of,
    lag_of,
)
from moldau.console.own.lists import OWN, Row, list_parameters, listed, matching, page
from moldau.console.problems import Problem
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import INTEGER, STRING, named, nullable, one_of, record

TYPES: Final = ("classic", "consumer", "share", "streams")
"""The kinds of groups, as Kafka calls them."""
DESCRIBED: Final = ("classic", "consumer")
"""Groups whose members and offsets the client can ask for."""
MAX_SORTED: Final = 5_000
"""Members and offsets of more groups are not asked for only to sort by them."""
_CHEAP: Final = ("group_id", "type", "protocol", "state", "coordinator")
_COSTLY: Final = ("members", "topics", "lag")
GROUP_ROW: Final = named(
    "GroupRow",
    record(
        {
            "group_id": STRING,
            "type": STRING,
            "protocol": nullable(STRING),
            "state": STRING,
            "coordinator": nullable(INTEGER),
            "members": nullable(INTEGER),
            "topics": nullable(INTEGER),
            "lag": nullable(INTEGER),
        }
    ),
)


async def list_groups(call: Call) -> Reply:
    """The groups that the person may describe. Raises: KafkaError: a broker does not answer, whose
    groups would be missing.
    """
    clients, query = await call.clients(), call.query
    listing = await clients.admin.list_groups(timeout_ms=ANSWER_TIMEOUT_MS)
    rows = [_row(each) for each in listing if query["type"] in (None, each.group_type)]
    rows = matching(rows, query["q"], ("group_id",))
    is_counted = query["sort"] in _COSTLY
    if is_counted:
        if len(rows) > MAX_SORTED:
            why = f"sorted by {query['sort']} are at most {MAX_SORTED} groups"
            raise Problem(422, f"{why}; {len(rows)} match: search for some of them")
        await _add_counts(call, clients, rows)
    shown = page(query, rows, name="group_id")
    if not is_counted:
        await _add_counts(call, clients, shown["data"])
    return Reply(shown)


def _row(listing: GroupListing) -> Row:
    return {
        "group_id": listing.group_id,
        "type": listing.group_type,
        "protocol": listing.protocol_type or None,
        "state": listing.state,
        "coordinator": listing.coordinator_id,
        "members": None,
        "topics": None,
        "lag": None,
    }


async def _add_counts(call: Call, clients: Clients, rows: Collection[Row]) -> None:
    """What each group's coordinator knows, and the lag."""
    by_id = {row["group_id"]: row for row in rows if row["type"] in DESCRIBED}
    described, committed = await asyncio.gather(
        _described(clients, [*by_id]), committed_by(clients, by_id)
    )
    known = {
        group_id: found
        for group_id, found in committed.items()
        if not isinstance(found, KafkaError)
    }
    ends = await ends_of(clients.admin, {at for found in known.values() for at in found})
    for group_id, row in by_id.items():
        group, offsets = described.get(group_id), known.get(group_id)
        if isinstance(group, GroupDescription):
            row["members"] = len(group.members)
            row["state"] = group.state
        if offsets is None:
            continue
        row["topics"] = len({*_topics(offsets), *_assigned(group)})
        row["lag"] = lag_of(offsets, ends)
        call.remember_lag(group_id, row["lag"])


def _topics(offsets: Committed) -> set[str]:
    return {each.topic for each in offsets}


def _assigned(group: GroupDescription | KafkaError | None) -> set[str]:
    if not isinstance(group, GroupDescription):
        return set()
    return {each.topic for member in group.members for each in member.assignment}


async def _described(
    clients: Clients, group_ids: list[str]
) -> dict[str, GroupDescription | KafkaError]:
    found: dict[str, GroupDescription | KafkaError] = {}
    for first in range(0, len(group_ids), GROUPS_AT_ONCE):
        some = group_ids[first : first + GROUPS_AT_ONCE]
        found.update(await clients.admin.describe_groups(some, timeout_ms=ANSWER_TIMEOUT_MS))
    return found


async def delete_group(call: Call) -> Reply:
    """Delete a group without members, and its offsets."""
    clients, group_id = await call.clients(), call.path["group"]
    problem = (await clients.admin.delete_groups([group_id]))[group_id]
    if problem is not None:
        raise problem
    return Reply({"command": command("groups", "delete", names=[group_id])})


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{OWN}/groups",
        handler=list_groups,
        name="listGroups",
        summary="Groups of every kind: searched, sorted and page by page",
        needs="Describe on the groups, the others are left out; Describe on the topics for lag",
        query=(
            *list_parameters((*_CHEAP, *_COSTLY), by="group_id"),
            Parameter("type", "Only groups of this kind.", one_of(*TYPES)),
        ),
        answer=listed("GroupRows", GROUP_ROW),
    ),
    Route(
        method="DELETE",
        path=f"{OWN}/groups/{{group}}",
        handler=delete_group,
        name="deleteGroup",
        summary="Delete a group without members, and its offsets",
        needs="Delete on the group",
        answer=DONE,
    ),
)
