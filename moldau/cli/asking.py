"""The question before a command destroys something: one way to ask, for all of them.

Owns when there is a question, what counts as a yes, how names that are wrong are refused, which
topics are internal, and what is said of the records that go. Must not destroy anything. Invariants:
every name is checked before the first question; a question is one line that names what goes; until
there is a yes, nothing is destroyed; away from a terminal `--yes` is the only yes, and the error
without it names what would go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from moldau.cli.output import can_ask, confirm, fail, size_text
from moldau.protocol.types import INTERNAL_PREFIX
from moldau.text import did_you_mean

if TYPE_CHECKING:
    from moldau import client

Yes = Annotated[bool, "--yes -y", "Do not ask."]
WithInternal = Annotated[bool, "--internal", "Allow internal topics, as __consumer_offsets."]

#: How many names a line has.
MOST_NAMES: Final = 5
FIGURES_TIMEOUT_MS: Final = 5_000
"""So long brokers may take for figures of a question, which are worth having without the others."""


def ask_first(deed: str, *, yes: bool, scripts_go_on: bool = False) -> None:
    """Have a yes for a deed, or end the command: status 1 for a no, 2 for a missing `--yes`.

    Args:
        deed: what is destroyed, as in "delete topic a (3 partitions)".
        scripts_go_on: whether only a terminal is asked, since one command makes it again.
    """
    if yes:
        return
    if can_ask():
        if not confirm(f"{deed}?"):
            fail("nothing was changed")
    elif not scripts_go_on:
        fail(f"this would {deed}; give --yes if that is what you want", status=2)


def is_asked(*, yes: bool, scripts_go_on: bool = False) -> bool:
    """Whether `ask_first` says what goes: what costs a request is only asked for then."""
    return not yes and (can_ask() or not scripts_go_on)


def refuse_unknown(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Exits with status 1 when one of these names is not known, and says which are near."""
    known = set(known)
    lines = [
        f"there is no {kind} {name!r}{did_you_mean(name, known, most=3)}"
        for name in names
        if name not in known
    ]
    if lines:
        more = f", and {len(lines) - MOST_NAMES} more" if len(lines) > MOST_NAMES else ""
        fail(f"nothing was changed: {', '.join(lines[:MOST_NAMES])}{more}")


def refuse_internal(names: Iterable[str], *, allowed: bool) -> None:
    """Exits with status 2 when one of these topics is internal, and that is not allowed."""
    found = [name for name in names if is_internal(name)]
    if found and not allowed:
        what = "is an internal topic" if len(found) == 1 else "are internal topics"
        fail(f"{names_text(found)} {what} that brokers keep; --internal allows it", status=2)


def is_internal(name: str) -> bool:
    """Whether brokers, or the tools around them, keep a topic. Names say more than brokers do: each
    release knows only its own.
    """
    return name.startswith(INTERNAL_PREFIX)


def names_text(names: Sequence[str]) -> str:
    """Names in one line, the first ones when there are many."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, what: str) -> str:
    """`1 partition`, `1,204 records`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


async def contents_text(admin: client.Admin, topics: Mapping[str, client.TopicDescription]) -> str:
    """What is in topics: `6 partitions, about 1,204 records, 3.4 MiB`, one copy of each.

    "At least" stands where a partition has no leader that answers. Raises: KafkaError
    """
    from moldau import client

    leaders = [
        client.TopicPartitionReplica(name, each.partition, each.leader)
        for name, topic in topics.items()
        for each in topic.partitions
        if each.leader >= 0
    ]
    total = sum(len(topic.partitions) for topic in topics.values())
    limit_ms = FIGURES_TIMEOUT_MS
    offsets = admin.list_replica_offsets
    first, end, logs = await asyncio.gather(
        offsets(leaders, client.OffsetSpec.EARLIEST, as_consumer=True, timeout_ms=limit_ms),
        offsets(leaders, client.OffsetSpec.LATEST, as_consumer=True, timeout_ms=limit_ms),
        admin.describe_replica_logs(leaders, timeout_ms=limit_ms),
    )
    counts = []
    for each in leaders:
        low, high = first[each], end[each]
        if isinstance(low, int) and isinstance(high, int) and 0 <= low <= high:
            counts.append(high - low)
    sizes = [log.size_bytes for log in logs.values() if isinstance(log, client.ReplicaLog)]
    texts = [counted(total, "partition")]
    if counts:
        about = "about" if len(counts) == total else "at least"
        texts.append(f"{about} {counted(sum(counts), 'record')}")
    if sizes:
        texts.append(("" if len(sizes) == total else "at least ") + size_text(sum(sizes)))
    return ", ".join(texts)
