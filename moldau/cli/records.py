"""`moldau records`: delete the oldest records of partitions, up to an offset.

Invariants: everything is checked before the first record goes: that partitions exist, that the
offset lies within the log, that topics are not internal; where nothing would go, nothing is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import typer

from moldau import client
from moldau.cli.asking import WithInternal, Yes, ask_first, counted, names_text, refuse_internal
from moldau.cli.completion import complete_topics
from moldau.cli.options import AsJson, ClusterAccess, describe_targets
from moldau.cli.output import fail, print_json, say

FORM: Final = "TOPIC:PARTITION@OFFSET, or TOPIC@end or TOPIC:PARTITION@end for all there is"
END: Final = "end"
app = typer.Typer()


class Cut(NamedTuple):
    """What goes: the records of a topic's partition (None: of all) before an offset (None: all)."""

    topic: str
    partition: int | None
    offset: int | None


@dataclass(frozen=True, slots=True)
class Planned:
    """One partition with the offset that its log is to begin at, and where it begins now."""

    partition: client.TopicPartition
    low_watermark: int
    offset: int

    @property
    def count(self) -> int:
        """How many offsets go; of a compacted topic, or with transactions, fewer are records."""
        return max(0, self.offset - self.low_watermark)


def parse_cuts(texts: Iterable[str]) -> list[Cut]:
    """What is to go; exits with status 2 for another form, or a partition that is named twice."""
    found: dict[tuple[str, int | None], Cut] = {}
    for text in texts:
        where, at, place = text.rpartition("@")
        topic, colon, index = where.partition(":")
        is_place = place == END or (place.isascii() and place.isdigit())
        if not (at and topic and is_place) or (colon and not (index.isascii() and index.isdigit())):
            fail(f"{text!r} is not {FORM}", status=2)
        if not colon and place != END:
            fail(f"{text!r}: an offset is one partition's: {topic}:PARTITION@{place}", status=2)
        cut = Cut(topic, int(index) if colon else None, None if place == END else int(place))
        if (cut[:2] in found) or any(
            each.topic == topic and None in (each.partition, cut.partition)
            for each in found.values()
        ):
            fail(f"{where} is named twice", status=2)
        found[cut[:2]] = cut
    return list(found.values())


@app.command("delete")
def delete(
    access: ClusterAccess,
    places: Annotated[
        list[str],
        "TOPIC:PARTITION@OFFSET…",
        complete_topics,
        "The first offset that stays; TOPIC@end: all records.",
    ],
    internal: WithInternal = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the records before an offset, for good.

    Files go when all that is in them has. Topics that are only compacted refuse it.
    """
    cuts = parse_cuts(places)
    refuse_internal(dict.fromkeys(each.topic for each in cuts), allowed=internal)
    with access.asking(client.Admin) as (admin, loop):
        plan = loop.run(planned(admin, cuts))
        goes = {each.partition: each.offset for each in plan if each.count}
        if goes:
            ask_first(f"delete {_text(plan)}", yes=yes)
        lows = loop.run(admin.delete_records(goes)) if goes else {}
    if as_json:
        print_json([_row(each, lows) for each in plan])
        return
    for each in plan:
        begins = f"{each.partition} begins at {lows.get(each.partition, each.low_watermark)}"
        say(f"{begins}, {counted(each.count, 'offset')} deleted" if each.count else begins)


def _row(each: Planned, lows: Mapping[client.TopicPartition, int]) -> dict[str, object]:
    low = lows.get(each.partition, each.low_watermark)
    return {**each.partition._asdict(), "low_watermark": low, "deleted_count": each.count}


def _text(plan: Collection[Planned]) -> str:
    """What goes, in one line: `120 offsets of orders-1 (0 to 119)`."""
    going = [each for each in plan if each.count]
    total = counted(sum(each.count for each in going), "offset")
    if len(going) == 1:
        [one] = going
        return f"{total} of {one.partition} ({one.low_watermark} to {one.offset - 1})"
    return f"{total} of {names_text([f'{each.partition}@{each.offset}' for each in going])}"


async def planned(admin: client.Admin, cuts: Collection[Cut]) -> list[Planned]:
    """What each partition's log begins with now and then. Exits with status 1 for a partition that
    does not exist, has no leader, or ends before the offset. Raises: KafkaError
    """
    targets = [(each.topic, each.partition) for each in cuts]
    _, partitions = await describe_targets(admin, targets)
    wanted = {(each.topic, each.partition): each.offset for each in cuts}
    lows = await admin.list_partition_offsets(dict.fromkeys(partitions, client.OffsetSpec.EARLIEST))
    highs = await admin.list_partition_offsets(dict.fromkeys(partitions, client.OffsetSpec.LATEST))
    plan = []
    for each in partitions:
        low, high = lows[each], highs[each]
        if isinstance(low, client.KafkaError) or isinstance(high, client.KafkaError):
            error = low if isinstance(low, client.KafkaError) else high
            fail(f"nothing was changed: {error}")
        offset = wanted.get((each.topic, each.partition), wanted.get((each.topic, None)))
        if offset is not None and offset > high.offset:
            fail(f"nothing was changed: {each} ends at {high.offset}, before {offset}")
        plan.append(Planned(each, low.offset, high.offset if offset is None else offset))
    return plan
