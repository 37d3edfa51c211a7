"""Members of classic groups that keep what they own while they rebalance (KIP-429).

Owns: what such a member gives up and when, and its assignor on the leader's side. Must not: give a
partition to a member while another one has it. Invariant: what a member says it owns when it joins
is what it reads until its generation takes it away; then it joins again without it.
"""

from __future__ import annotations

from typing import Any

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tests.simulation.transactions.members import VERSION, ClassicMembership, Place

SLOW_REVOCATIONS = 0.3


class CooperativeMembership(ClassicMembership):
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup; cooperative."""

    protocol = "cooperative-sticky"

    def rebalances(self) -> None:
        if self.is_member:
            self.must_join = True
        else:
            self.drop()

    async def take(self, given: list[Place]) -> None:
        lost = set(self.mine).difference(given)
        if lost and self.link.random.random() < SLOW_REVOCATIONS:
            self.world.counts["slow_revocations"] += 1
            await self.world.loop.elapse(self.link.random.uniform(100.0, 1_200.0))
        self.world.data.released(self.group, self.label, given)
        self.mine = given
        self.must_join = bool(lost)

    def _is_outdated(self) -> bool:
        return super()._is_outdated() or self._has_left_over()

    def _has_left_over(self) -> bool:
        """Whether a partition has no owner because the member that gave it up was replaced before
        it joined again. In the run's last phase the application of the leader asks for a rebalance
        then (KIP-568): nothing else begins one.
        """
        world, log = self.world, self.world.data.group_log
        return not world.members_may_go and any(
            log.is_left_over(self.group, (topic, index))
            for topic in self.topics
            for index in range(world.partition_count(topic))
        )

    def assign(self, members: list[Any]) -> dict[str, dict[str, list[int]]]:
        """As the range assignor, but what another member has waits until that one has given it
        up.
        """
        owners: dict[Place, tuple[int, str]] = {}
        for each in members:
            told = _told(bytes(each.metadata))
            if told is not None:
                for topic in told.owned_partitions:
                    for index in topic.partitions:
                        claim = (told.generation_id, each.member_id)
                        place = (topic.topic, index)
                        owners[place] = max(claim, owners.get(place, claim))
        shares = super().assign(members)
        for member, share in shares.items():
            for topic, indexes in share.items():
                share[topic] = [
                    index
                    for index in indexes
                    if owners.get((topic, index), (0, member))[1] == member
                ]
        return shares


def _told(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """What a member says of itself; None when it cannot be read."""
    try:
        return ConsumerProtocolSubscription.decode(metadata, VERSION, 2)[0]
    except RemoteProtocolError:
        return None
