"""`moldau groups delete-offsets`: make a group forget topics.

Must not talk to a cluster except through `moldau.client`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from moldau.cli.cluster_options import (
    DEFAULT_TIMEOUT_MS,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    with_admin,
)
from moldau.cli.group_targets import Topics, parse_topics
from moldau.cli.output import complain, fail
from moldau.client import Admin, KafkaError, TopicPartition


def delete_offsets(
    group_id: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    topics: Topics = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
) -> None:
    """Delete what a group has committed for topics that none of its members reads."""
    wanted = parse_topics(topics)
    if not wanted:
        fail("which topics? give --topic", status=2)

    async def work(admin: Admin) -> dict[TopicPartition, KafkaError | None]:
        committed = (await admin.list_group_offsets([group_id]))[group_id]
        if isinstance(committed, KafkaError):
            raise committed
        partitions = {each for each in committed if each.topic in wanted}
        chosen = []
        for topic, indexes in wanted.items():
            of_topic = {each for each in partitions if each.topic == topic}
            if indexes is not None:
                of_topic = {TopicPartition(topic, index) for index in indexes}
            chosen += sorted(of_topic)
        # Nothing to delete: the group may be unknown, which the coordinator says best.
        chosen = chosen or [TopicPartition(topic, 0) for topic in wanted]
        return await admin.delete_group_offsets(group_id, chosen)

    outcome = with_admin(bootstrap_server, command_config, timeout_ms, work)
    for partition, error in outcome.items():
        if error is None:
            typer.echo(f"{group_id} has no offset of {partition} any more")
    complain(dict.fromkeys(str(error) for error in outcome.values() if error is not None))
