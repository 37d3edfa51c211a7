"""A simulated operator of the quorum: removes voters, wipes their disks, adds them again.

Owns: which voter is out, and the requests that take it out and in. Must not: take out a second one
while one is out: with more gone a majority of what is committed could go with them.
Invariant: after `finish` every controller is a voter.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.p81_remove_raft_voter import RemoveRaftVoterRequest
from moldau.protocol.messages.quorum_records import Endpoint
from moldau.raft import VoterDescription
from tests.simulation.cluster.disk import Death
from tests.simulation.cluster.link import ControllerLink
from tests.simulation.cluster.logs import CLUSTER_ID
from tests.simulation.cluster.node import ControllerNode
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

DONE = frozenset({ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND, ErrorCode.DUPLICATE_VOTER})


class Operator:
    """One change of the voters after the other, each tried until it is done."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.process = Process(world.loop, "operator")
        self.is_busy = False
        self._link = ControllerLink(
            world.loop,
            world.fabric.port_of(self.process, "operator"),
            random,
            world.controller_addresses,
            "operator",
        )

    def replace_one(self) -> None:
        """Begin to take a voter out and in again, with an empty disk perhaps."""
        if not self.is_busy and len(self.world.controllers) > 1:
            self.is_busy = True
            self.process.spawn(self._replace(self.random.choice(self.world.controllers)))

    async def _replace(self, node: ControllerNode) -> None:
        world = self.world
        await self._until_done(node.voter, adds=False)
        world.note(f"{node.host} is no voter any more")
        await world.loop.elapse(self.random.uniform(0, 3_000))
        if self.random.random() < 0.5:
            await self._wipe(node)
        await self._until_done(node.voter, adds=True)
        world.note(f"{node.host} is a voter again")
        world.counts["voters_replaced"] += 1
        self.is_busy = False

    async def _wipe(self, node: ControllerNode) -> None:
        world = self.world
        node.is_held = True
        if node.is_alive:
            node.kill(Death.KILL)
        await world.loop.elapse(10.0)
        world.fault_injected("disk wiped", node.host)
        node.wipe()
        node.is_held = False
        node.start()

    async def _until_done(self, voter: VoterDescription, *, adds: bool) -> None:
        while True:
            request: AddRaftVoterRequest | RemoveRaftVoterRequest
            if adds:
                request = AddRaftVoterRequest(
                    cluster_id=CLUSTER_ID,
                    timeout_ms=1_800,
                    voter_id=voter.voter_id,
                    voter_directory_id=voter.directory_id,
                    listeners=[
                        Endpoint(name=each.listener_name, host=each.host, port=each.port)
                        for each in voter.endpoints
                    ],
                )
            else:
                request = RemoveRaftVoterRequest(
                    cluster_id=CLUSTER_ID,
                    voter_id=voter.voter_id,
                    voter_directory_id=voter.directory_id,
                )
            try:
                response = await self._link.send_once(request)
                error = ErrorCode.of(response.error_code)
            except ControllerUnavailable:
                error = ErrorCode.REQUEST_TIMED_OUT
            if error in DONE:
                return
            if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.BROKER_NOT_AVAILABLE):
                self._link.look_elsewhere()
            await self.world.loop.elapse(self.random.uniform(20, 200))
