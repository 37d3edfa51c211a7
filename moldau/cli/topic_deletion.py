"""`moldau topics delete`.

Invariant: the first topic is deleted when every name is known, internal topics are allowed, and
there is a yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from moldau import client
from moldau.cli.asking import (
    WithInternal,
    Yes,
    ask_first,
    contents_text,
    is_asked,
    names_text,
    refuse_internal,
    refuse_unknown,
)
from moldau.cli.completion import complete_topics
from moldau.cli.options import ClusterAccess
from moldau.cli.output import say
from moldau.client.admin.topics import TopicCalls


def delete(
    access: ClusterAccess,
    names: Annotated[list[str], complete_topics, "The topics to delete."],
    if_exists: Annotated[bool, "Succeed if a topic does not exist."] = False,
    internal: WithInternal = False,
    yes: Yes = False,
) -> None:
    """Delete topics and everything in them.

    All names are checked, and a terminal is asked, before the first topic goes.
    """
    names = list(dict.fromkeys(names))
    refuse_internal(names, allowed=internal)
    asks = is_asked(yes=yes)
    kind: type[TopicCalls] = client.Admin if asks else TopicCalls
    with access.asking(kind) as (admin, loop):
        found = loop.run(_existing(admin, names, if_exists=if_exists))
        if found and isinstance(admin, client.Admin):
            what = loop.run(contents_text(admin, found))
            topics = "topic" if len(found) == 1 else f"{len(found)} topics:"
            ask_first(f"delete {topics} {names_text(list(found))} ({what})", yes=yes)
        for name in names:
            # Said to go if it exists, it may also be so new that the broker asked lacks it.
            is_there = name in found or yes
            if is_there:
                try:
                    loop.run(admin.delete_topics([name]))
                except client.UnknownTopicOrPartition:  # another client was faster
                    if not if_exists:
                        raise
                    is_there = False
            say(f"deleted {name}" if is_there else f"{name} does not exist")


async def _existing(
    admin: TopicCalls, names: Sequence[str], *, if_exists: bool
) -> dict[str, client.TopicDescription]:
    """Those of these topics that exist. Exits with status 1 unless they all do, or `if_exists`.

    Raises: KafkaError
    """
    try:
        return await admin.describe_topics(names)
    except client.UnknownTopicOrPartition:
        known = await admin.list_topics(include_internal=True)
    if not if_exists:
        refuse_unknown("topic", names, known)
    return await admin.describe_topics([name for name in names if name in known])
