"""Members of groups by the protocol of KIP-848: the coordinator assigns, heartbeats carry it.

Owns: what one member has, step by step. Must not: keep what it was asked to give back. Invariant:
what it says it owns is what it reads; it says so only after it has given up the rest.
"""

from __future__ import annotations

from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from tests.simulation.transactions.members import Membership, Place

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH = 0, -1, -2
SESSION_MS = 3_000
"""As the brokers are configured."""

SLOW_REVOCATIONS = 0.5
REVOKING_BEAT_MS = 150.0
"""Between heartbeats while a member finishes its work before it gives partitions back."""

EXPRESSIONS = 0.2

OUT = frozenset(
    {
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)


class ConsumerMembership(Membership):
    """States: out → (epoch 0) → member, until it is fenced or leaves."""

    rebalance_ms = 3_000

    expression: str | None = None
    """The regular expression that stands for its topics."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ids: dict[Place, Any] = {}
        """Of which topic each partition is that it was given last."""

    async def join(self) -> None:
        self.drop()
        if not self.member_id:
            self.member_id = f"{self.label}-id"
            if self.link.random.random() < EXPRESSIONS:
                self.expression = "(" + "|".join(f"{name[:2]}.*" for name in self.topics) + ")"
        data = self.world.data
        while not self.is_member:
            data.challenged(self.group, self.label, self.instance_id, is_classic=False)
            await self._beat(JOIN_EPOCH)
            if not self.is_member:
                await self.link.pause()

    async def heartbeat(self) -> None:
        await self._beat(self.epoch)

    async def leave(self) -> None:
        self.drop()
        # A static member may leave its instance id to whoever comes next (KIP-848).
        is_rival = self.instance_id is not None and self.world.draws.rivals
        leaves_id = is_rival and self.link.random.random() < 0.7
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=LEAVE_FOR_A_WHILE_EPOCH if leaves_id else LEAVE_EPOCH,
            instance_id=self.instance_id,
        )
        await self.ask(request, "leave", 1)
        self.world.counts["leaves"] += 1

    async def _beat(self, epoch: int) -> None:
        sent_at = self.world.loop.time()
        error, response = await self.ask(self._request(epoch), "beat", 1)
        if response is None or error is not ErrorCode.NONE:
            if error in OUT:
                self.drop()
            return
        self.epoch = response.member_epoch
        if epoch == JOIN_EPOCH:
            self.is_member = True
        self.world.data.heard(self.group, self.label, sent_at)
        if response.assignment is not None:
            await self._take(response.assignment, sent_at)

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        """A heartbeat that tells everything."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self.rebalance_ms,
            subscribed_topic_names=[] if self.expression else self.topics,
            subscribed_topic_regex=self.expression,
            topic_partitions=[] if epoch == JOIN_EPOCH else self._owned(),
        )

    async def positions(self, places: list[Place]) -> dict[Place, int] | None:
        """As for all members, but only where the topic is the one that was assigned: one that was
        created again belongs to the member that the coordinator gives it to.
        """
        if self.has_topic_ids:
            for topic in sorted({each[0] for each in places if not self._is_there(each)}):
                await self.link.refresh(topic)
            places = [each for each in places if self._is_there(each)]
        return await super().positions(places) if places else {}

    def _is_there(self, place: Place) -> bool:
        return bool(self.link.topic_ids.get(place[0]) == self._ids[place])

    async def _take(self, assignment: Any, sent_at: float) -> None:
        names = self.world.data.topic_names
        ids: dict[Place, Any] = {
            (names[topic.topic_id], index): topic.topic_id
            for topic in assignment.topic_partitions
            for index in topic.partitions
        }
        given = list(ids)
        if given == self.mine and all(self._ids[each] == ids[each] for each in given):
            return
        if not set(self.mine).issubset(given) and self.link.random.random() < SLOW_REVOCATIONS:
            self.world.counts["slow_revocations"] += 1
            await self._finish_work(self.link.random.uniform(100.0, 1_200.0))
            if not self.is_member:
                return
        data = self.world.data
        data.counts["assignments"] += 1
        data.released(self.group, self.label, given)
        limit_ms = min(SESSION_MS, self.rebalance_ms)
        self.owns(ids, sent_at, limit_ms, is_classic=False)
        self.mine, self._ids = given, ids
        self.has_changed = True

    async def _finish_work(self, duration_ms: float) -> None:
        """What it has to give back it still reads, and says so in its heartbeats. These do not
        count as heard: the time that it has for giving back runs on. What they bring of a newer
        assignment the next one brings again.
        """
        until = self.world.loop.time() + duration_ms / 1000
        while self.is_member and (left_s := until - self.world.loop.time()) > 0:
            await self.world.loop.elapse(min(left_s * 1000, REVOKING_BEAT_MS))
            error, response = await self.ask(self._request(self.epoch), "beat", 1)
            if error in OUT:
                self.drop()
            elif response is not None and error is ErrorCode.NONE:
                self.epoch = response.member_epoch

    def _owned(self) -> list[TopicPartitions]:
        by_topic: dict[tuple[str, Any], list[int]] = {}
        for topic, index in self.mine:
            by_topic.setdefault((topic, self._ids[(topic, index)]), []).append(index)
        return [
            TopicPartitions(topic_id=topic_id, partitions=indexes)
            for (_name, topic_id), indexes in sorted(by_topic.items())
        ]
