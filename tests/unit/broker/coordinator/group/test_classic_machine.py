"""A classic group under everything that members, the log and failovers can do to it.

Clients join, sync, beat, leave, die, come back and rejoin with what they own (eager and cooperative
ones, dynamic and static); appends fail, commits are late, the coordinator moves. Whatever happens:
one leader per generation, one assignment per generation and member, stale generations are refused,
every request is answered, and when the world calms down the group becomes stable.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.broker.coordinator.group.core.classic_group import (
    JOIN,
    SESSION,
    SYNC,
    ClassicGroup,
    ClassicGroupState,
)
from moldau.broker.coordinator.group.core.context import GROUP_BYTES, PENDING_MEMBER_BYTES
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group.harness import Groups, Member, error_of, subscription
from tests.unit.broker.coordinator.harness import Caller

MAX_CLIENTS = 6
SESSION_MS = 10_000
REBALANCE_MS = 20_000
TOO_FEW = ErrorCode.NOT_ENOUGH_REPLICAS
STALE = {
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class Client:
    """A consumer: what it does next depends on what it was answered."""

    def __init__(self, member: Member, name: str, *, is_cooperative: bool) -> None:
        self.member = member
        self.name = name
        self.is_cooperative = is_cooperative
        self.phase = "out"
        self.is_alive = True
        self.has_rejoined = False
        self.beating = Caller()
        self.ids: set[str] = set()
        self.asked_in = 0
        """Which coordinator its last request went to."""


class ClassicGroupMachine(RuleBasedStateMachine):
    """Rules are single steps of single clients, or of the world around them."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[Client] = []
        self.callers: list[Caller] = []
        self.stale: list[Caller] = []
        self.incarnation = 0
        self.assigned: dict[tuple[int, int], dict[str, bytes]] = {}
        self.leaders: dict[tuple[int, int], set[str]] = {}
        self.shares: dict[tuple[int, int, str], bytes] = {}
        self.next_name = 0

    @initialize(
        is_prompt=st.booleans(),
        kinds=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4),
    )
    def start(self, is_prompt: bool, kinds: list[tuple[bool, bool]]) -> None:
        self.groups = Groups(
            is_committing_at_once=is_prompt,
            group_initial_rebalance_delay_ms=1000,
            group_max_size=MAX_CLIENTS - 1,
        )
        for is_static, is_cooperative in kinds:
            self._new_client(is_static, is_cooperative, 9)
        for _ in range(8):
            self._all_go_on()
            self.groups.advance(500)
            self.groups.log.commit()

    # -- clients ---------------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < MAX_CLIENTS)
    @rule(is_static=st.booleans(), is_cooperative=st.booleans(), version=st.sampled_from([3, 5, 9]))
    def new_client(self, is_static: bool, is_cooperative: bool, version: int) -> None:
        self._new_client(is_static, is_cooperative, version)
        self._go_on(self.clients[-1])

    def _new_client(self, is_static: bool, is_cooperative: bool, version: int) -> None:
        self.next_name += 1
        name = f"c{self.next_name}"
        protocols = {"range": subscription("events")}
        if is_cooperative:
            protocols["cooperative-sticky"] = subscription("events")
        member = self.groups.member(
            instance_id=name if is_static else None,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            version=max(version, 5) if is_static else version,
            protocols=protocols,
        )
        self.clients.append(Client(member, name, is_cooperative=is_cooperative))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_goes_on(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients), label="client")
        if client.is_alive:
            self._go_on(client)

    @precondition(lambda self: any(client.phase == "in" for client in self.clients))
    @rule(data=st.data())
    def client_wants_something_else(self, data: st.DataObject) -> None:
        inside = [each for each in self.clients if each.phase == "in" and each.is_alive]
        if inside:
            client = data.draw(st.sampled_from(inside), label="client")
            client.member.protocols["range"] += b"."
            self._join(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_loses_its_connection(self, data: st.DataObject) -> None:
        """What it waits for will not reach it; it joins again, differently."""
        client = data.draw(st.sampled_from(self.clients), label="client")
        if client.is_alive and client.phase != "out":
            client.member.protocols["range"] += b"."
            self._join(client)

    @rule(times=st.integers(1, 4), error=st.sampled_from([ErrorCode.NONE, TOO_FEW]))
    def everybody_goes_on(self, times: int, error: ErrorCode) -> None:
        self.groups.log.append_error = error
        for _ in range(times):
            self._all_go_on()

    def _all_go_on(self) -> None:
        for client in self.clients:
            if client.is_alive:
                self._go_on(client)

    def _go_on(self, client: Client) -> None:
        if client.phase == "out":
            self._join(client)
        elif client.phase == "joining" and client.member.joining.is_answered:
            self._joined(client)
        elif client.phase == "joined":
            self._sync(client)
        elif client.phase == "syncing" and client.member.syncing.is_answered:
            self._synced(client)
        elif client.phase == "in":
            self._beat(client)
        elif client.phase == "beating" and client.beating.is_answered:
            self._has_beaten(client)

    def _join(self, client: Client) -> None:
        former = client.member.joining
        if former.is_answered and error_of(former) is ErrorCode.NONE:
            # The coordinator's name for it, which a client that died then never read.
            client.ids.add(former.answer.member_id)
        self.callers.append(client.member.ask_to_join())
        client.asked_in = self.incarnation
        client.phase = "joining"

    def _joined(self, client: Client) -> None:
        member = client.member
        error = error_of(member.joining)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = member.joining.answer.member_id
            self._join(client)
        elif error is ErrorCode.NONE:
            client.phase = "joined"
        else:
            self._refused(client, error)

    def _sync(self, client: Client) -> None:
        member = client.member
        answer = member.joined()
        client.ids.add(member.member_id)
        key = (client.asked_in, member.generation)
        shares = None
        if answer.leader == member.member_id:
            self.leaders.setdefault(key, set()).add(client.name)
            assert member.member_id in [each.member_id for each in answer.members]
            if not answer.skip_assignment:
                shares = {
                    each.member_id: f"{key} {each.member_id}".encode() for each in answer.members
                }
                self.assigned[key] = shares
        else:
            assert answer.members == [], "only the leader hears of the others"
        assert len(self.leaders.get(key, ())) <= 1, "one leader per generation"
        self.callers.append(member.sync(shares))
        client.asked_in = self.incarnation
        client.phase = "syncing"

    def _synced(self, client: Client) -> None:
        member = client.member
        error = error_of(member.syncing)
        if error is not ErrorCode.NONE:
            self._refused(client, error)
            return
        client.phase = "in"
        share = member.syncing.answer.assignment
        key = (client.asked_in, member.generation, member.member_id)
        assert self.shares.setdefault(key, share) == share, "one share per generation and member"
        # By this coordinator's leader, or by an earlier one's that the log kept.
        assigned = [
            shares
            for (incarnation, generation), shares in self.assigned.items()
            if generation == member.generation and incarnation <= client.asked_in
        ]
        assert assigned, "what nobody assigned"
        possible = {shares.get(each, b"") for shares in assigned for each in client.ids}
        assert share in possible, "the share of another member"

    def _beat(self, client: Client) -> None:
        client.beating = client.member.beat()
        self.callers.append(client.beating)
        client.phase = "beating"
        if client.beating.is_answered:
            self._has_beaten(client)

    def _has_beaten(self, client: Client) -> None:
        error = error_of(client.beating)
        client.phase = "in"
        if error is not ErrorCode.NONE:
            self._refused(client, error)
        elif client.is_cooperative and not client.has_rejoined:
            # It says what it owns now, and gives up the rest with the next generation.
            client.has_rejoined = True
            share = client.member.syncing.answer.assignment
            client.member.protocols["cooperative-sticky"] = subscription("events") + share
            self._join(client)

    def _refused(self, client: Client, error: ErrorCode) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            client.member.member_id = ""
        if error is ErrorCode.FENCED_INSTANCE_ID:
            client.is_alive = False
        client.phase = "out"

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients), label="client")
        self.callers.append(client.member.leave())
        self.clients.remove(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_dies(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.clients), label="client").is_alive = False

    @precondition(lambda self: any(not client.is_alive for client in self.clients))
    @rule(data=st.data())
    def client_is_started_again(self, data: st.DataObject) -> None:
        dead = [client for client in self.clients if not client.is_alive]
        client = data.draw(st.sampled_from(dead), label="client")
        client.member.member_id = ""
        client.is_alive = True
        client.has_rejoined = False
        client.phase = "out"

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), generation=st.integers(-1, 8))
    def stale_requests_are_refused(self, data: st.DataObject, generation: int) -> None:
        member = data.draw(st.sampled_from(self.clients), label="client").member
        group = self._group()
        if group is None or generation == group.generation_id or not member.member_id:
            return
        before = member.syncing
        stale = [member.beat(generation=generation), member.sync(generation=generation)]
        member.syncing = before
        if not group.is_empty or generation >= 0:
            stale.append(member.commit({("events", 0): 1}, generation=generation))
        self.callers += stale
        self.stale += stale
        self._check_stale()

    def _check_stale(self) -> None:
        """A refusal may wait for the proof that its coordinator leads, or lack it."""
        errors = {error_of(caller) for caller in self.stale if caller.is_answered}
        assert errors <= STALE

    # -- the world -------------------------------------------------------------------------------

    @rule(elapsed_ms=st.sampled_from([500, 1000, 3000, SESSION_MS]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.groups.advance(elapsed_ms)

    @rule()
    def the_log_is_committed(self) -> None:
        self.groups.log.commit()

    @rule(is_lost=st.booleans())
    def the_coordinator_moves(self, is_lost: bool) -> None:
        keep = self.groups.log.high_watermark if is_lost else self.groups.log.log_end_offset
        self.groups.log.append_error = ErrorCode.NONE
        self.groups.fail_over(keep=keep)
        self.groups.log.commit()
        self.incarnation += 1

    # -- what always holds -----------------------------------------------------------------------

    def _group(self) -> ClassicGroup | None:
        group: Any = self.groups.state.groups.get("team")
        return group

    @invariant()
    def the_group_agrees_with_itself(self) -> None:
        if not hasattr(self, "groups"):
            return
        group = self._group()
        if group is None:
            return
        members = group.members.values()
        waiting = sum(member.join_reply_to is not None for member in members)
        assert group.waiting_to_join_count == waiting
        assert (group.leader_id in group.members) == bool(group.members)
        assert group.pending_sync <= group.members.keys()
        for instance_id, member_id in group.static_members.items():
            assert group.members[member_id].group_instance_id == instance_id
        if group.state is not ClassicGroupState.COMPLETING_REBALANCE:
            assert all(member.sync_reply_to is None for member in members)
        if group.is_empty:
            assert not group.members
        members_bytes = sum(member.size_bytes for member in members)
        pending_bytes = PENDING_MEMBER_BYTES * len(group.pending_members)
        assert group.size_bytes == GROUP_BYTES + len("team") + members_bytes + pending_bytes

    @invariant()
    def no_member_waits_for_ever_and_no_timer_outlives_its_use(self) -> None:
        if not hasattr(self, "groups"):
            return
        group = self._group()
        timers = self.groups.timers
        if group is None:
            assert timers == []
            return
        kinds = {kind for kind, _ in timers}
        assert (JOIN in kinds) is (group.state is ClassicGroupState.PREPARING_REBALANCE)
        has_generation = group.state in (
            ClassicGroupState.COMPLETING_REBALANCE,
            ClassicGroupState.STABLE,
        )
        assert (SYNC in kinds) is (has_generation and bool(group.pending_sync))
        sessions = {member_id for kind, member_id in timers if kind == SESSION}
        waiting = {
            member.member_id
            for member in group.members.values()
            if member.join_reply_to is not None or member.sync_reply_to is not None
        }
        assert sessions <= group.members.keys() | group.pending_members
        assert group.members.keys() | group.pending_members <= sessions | waiting

    def teardown(self) -> None:
        """The world calms down: who lives becomes a member of one stable generation."""
        if not hasattr(self, "groups"):
            return
        self.groups.log.append_error = ErrorCode.NONE
        for client in self.clients[MAX_CLIENTS - 1 :]:
            client.is_alive = False  # the group does not take more
        for _ in range(60):
            for client in self.clients:
                client.has_rejoined = True
            self._all_go_on()
            self.groups.log.commit()
            self.groups.advance(2000)
            self.groups.log.commit()
            if self._is_calm():
                break
        assert all(caller.is_answered for caller in self.callers), "nobody waits for ever"
        self._check_stale()
        assert self._is_calm()
        before = self._group()
        self.groups.fail_over()
        after = self._group()
        if before is None or not before.members:
            # That the last one left may not have been written: its session ends all the same.
            self.groups.advance(SESSION_MS)
            assert after is None or after.is_empty
        else:
            assert after is not None
            assert after.generation_id == before.generation_id
            assert after.leader_id == before.leader_id
            assert {name: each.assignment for name, each in after.members.items()} == {
                name: each.assignment for name, each in before.members.items()
            }

    def _is_calm(self) -> bool:
        group = self._group()
        living = [client for client in self.clients if client.is_alive]
        if not living:
            return group is None or group.is_empty
        return (
            group is not None
            and group.state is ClassicGroupState.STABLE
            and {client.phase for client in living} == {"in"}
            and {client.member.generation for client in living} == {group.generation_id}
            and set(group.members) == {client.member.member_id for client in living}
        )


ClassicGroupMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    print_blob=True,
)
test_a_classic_group_under_everything = ClassicGroupMachine.TestCase
