"""A client that deletes groups and offsets, whoever uses them.

Owns: one DeleteGroups or OffsetDelete after the other. Must not: wait for a group to be empty.
Invariants: what is told to be deleted is gone from the log, but for what was written since; what a
group uses is refused.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p42_delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.p47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.kit.seeds import Violation
from tests.simulation.transactions.coordinator_link import GROUP
from tests.simulation.transactions.faulty_clients import PASSING, TRIES, FaultyClient

REFUSED = frozenset(
    {
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }
)


class Deleter(FaultyClient):
    """See the module."""

    async def delete_group(self, group: str) -> None:
        """Until it is deleted, or refused. Raises Violation."""
        request = DeleteGroupsRequest(groups_names=[group])
        for _ in range(TRIES):
            asked_at = self.world.loop.time()
            _error, response = await self.ask(GROUP, group, request, 2)
            if response is not None:
                error = self._judge(response.results[0].error_code, group, "delete group")
                if error is ErrorCode.NONE:
                    self.world.note(f"{group} is deleted")
                    self.world.guard(self.world.data.group_deleted, group, asked_at)
                if error not in PASSING:
                    return
            await self.link.pause()

    async def delete_offset(self, group: str, topic: str, index: int) -> None:
        """Until it is deleted, or refused. Raises Violation."""
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)]
                )
            ],
        )
        for _ in range(TRIES):
            asked_at = self.world.loop.time()
            error, response = await self.ask(GROUP, group, request, 0)
            if response is not None:
                self._judge(error, group, "delete offset")
                if error is ErrorCode.NONE and response.topics:
                    code = response.topics[0].partitions[0].error_code
                    error = self._judge(code, group, "delete offset")
                    if error is ErrorCode.NONE:
                        key = (group, topic, index)
                        self.world.guard(self.world.data.offset_deleted, key, asked_at)
                if error not in PASSING:
                    return
            await self.link.pause()

    def _judge(self, code: int, group: str, what: str) -> ErrorCode:
        error = self.judge(ErrorCode.of(code), GROUP, group)
        if error not in PASSING | REFUSED | {ErrorCode.NONE}:
            raise Violation("unexpected-error", f"{self}: {what}: {group}: {error.name}")
        if error is not ErrorCode.NONE:
            self.world.counts[f"{what} {error.name}"] += 1
        return error
