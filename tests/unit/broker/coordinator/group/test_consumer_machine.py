"""A consumer group under everything that can happen to it.

Members of both protocols join, leave, die, come back, are slow to give partitions back; topics
appear, grow and vanish; answers wait for commits; leadership moves, with and without loss of what
was not committed. After every step:

- no member of the group reads a partition that another member reads,
- a target assignment gives each partition to one member,
- every partition of the coordinator's books has the owner that the members say,
- every member has a session that ends, and every partition asked back a time by which it has to be
  given back.

In the end all members do what they are asked, and each wanted partition has exactly one reader.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import MemberState
from moldau.broker.coordinator.group.core.consumer_protocol import read_assignment
from moldau.broker.coordinator.group.core.context import (
    GROUP_BYTES,
    NAME_BYTES,
    PARTITION_BYTES,
)
from moldau.broker.coordinator.group.core.metadata_hash import TopicHashes
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group.consumer_harness import Consumer, ConsumerShard, name_of
from tests.unit.broker.coordinator.group.harness import Member
from tests.unit.broker.coordinator.group.migration_harness import subscription
from tests.unit.broker.coordinator.harness import Caller

TOPICS = ("a", "b", "c")
REGEX = "[bc]"


class ClassicClient:
    """A member of the classic protocol, cooperative: it gives up what SyncGroup leaves out."""

    def __init__(self, groups: ConsumerShard, topics: list[str]) -> None:
        self.groups = groups
        self.topics = topics
        self.member = Member(groups, session_ms=45_000)
        self.owned: dict[str, set[int]] = {}
        self.is_slow = False

    @property
    def member_id(self) -> str:
        return self.member.member_id

    def heartbeat(self) -> None:
        if not self.member.member_id or self.member.generation < 0:
            self.join()
            return
        caller = self._ask_heartbeat()
        if caller is ErrorCode.REBALANCE_IN_PROGRESS and not self.is_slow:
            self.join()
        elif caller in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._start_anew()

    def _ask_heartbeat(self) -> ErrorCode | None:
        from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest

        request = HeartbeatRequest(
            group_id="team", generation_id=self.member.generation, member_id=self.member_id
        )
        caller = self.groups.call(
            "team",
            lambda state, to, now_ms: state.protocol_of("team").heartbeat(request, to, now_ms),
        )
        return _code(caller)

    def join(self) -> None:
        partitions = {name: sorted(parts) for name, parts in self.owned.items()}
        self.member.protocols = {"range": subscription(partitions, *self.topics)}
        caller = self.member.join()
        code = _code(caller)
        if code is not ErrorCode.NONE:
            if code is not None:
                self._start_anew()
            return
        self.member.joined()
        caller = self.member.sync()
        if _code(caller) is ErrorCode.NONE:
            told = read_assignment(bytes(caller.answer.assignment))
            self.owned = {topic.topic: set(topic.partitions) for topic in told.assigned_partitions}
        elif _code(caller) in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._start_anew()

    def release(self) -> None:
        self.is_slow = False

    def leave(self) -> None:
        self.member.leave()
        self._start_anew()

    def _start_anew(self) -> None:
        self.owned = {}
        self.member.member_id, self.member.generation = "", -1


def _code(caller: Caller) -> ErrorCode | None:
    """The answer's error, None while there is none."""
    if not caller.is_answered:
        return None
    answer = caller.answer
    return answer if isinstance(answer, ErrorCode) else ErrorCode.of(answer.error_code)


def _is_refused(answer: Any) -> bool:
    return answer is not None and (isinstance(answer, ErrorCode) or bool(answer.error_code))


class Client(Consumer):
    """A member of the new protocol whose answers may come late, or never."""

    is_unsure = False
    """Its last heartbeat was not answered, or refused: the next one says everything."""

    def heartbeat(self, **changes: Any) -> Any:
        if self.epoch == 0:
            return self.join()
        if self.is_unsure or (self.last is not None and not self.last.is_answered):
            changes = {**self.full(), **changes}
        self.is_unsure = False
        answer = super().heartbeat(**changes)
        self.is_unsure = _is_refused(answer)
        return answer

    def _take(self, answer: Any) -> Any:
        if answer is None or isinstance(answer, ErrorCode):
            return answer
        return super()._take(answer)

    def take_late(self) -> None:
        """The answer to the last request may have come in the meantime."""
        if self.last is not None and self.last.is_answered:
            answer, self.last = self.last.answer, None
            self._take(answer)
            self.is_unsure = self.is_unsure or _is_refused(answer)


def test_a_late_refusal_is_a_refusal() -> None:
    """The answer that had the assignment was refused after it had waited too long for its commit:
    the client says everything again, and gets everything.
    """
    machine = ConsumerGroupMachine()
    machine.start(interval_ms=0, assignor="uniform")
    machine.topic_appears_or_grows(count=1, name="b")
    machine.join_by_expression()
    machine.commits_stop()
    machine.everybody_heartbeats()
    machine.time_passes(elapsed_ms=5000)
    machine.teardown()


class ConsumerGroupMachine(RuleBasedStateMachine):
    members: Any = Bundle("members")

    @initialize(
        interval_ms=st.sampled_from([0, 1000]), assignor=st.sampled_from(["uniform", "range"])
    )
    def start(self, interval_ms: int, assignor: str) -> None:
        self.groups = ConsumerShard(
            group_consumer_assignment_interval_ms=interval_ms,
            group_consumer_migration_policy="upgrade",
            group_consumer_assignors=(assignor,),
        )
        self.sizes = {"a": 4}
        self.groups.create_topic("a", 4)
        self.live: list[Any] = []
        self.instances = 0

    # -- members ---------------------------------------------------------------------------------

    @rule(target=members, topics=st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    def join(self, topics: list[str]) -> Any:
        return self._added(Client(self.groups, "team", topics))

    @rule(target=members, instance=st.integers(0, 2))
    def join_static(self, instance: int) -> Any:
        name = f"static-{instance}"
        if any(getattr(member, "instance_id", None) == name for member in self.live):
            return multiple()
        return self._added(Client(self.groups, "team", ["a", "b"], instance_id=name))

    @rule(target=members)
    def join_by_expression(self) -> Any:
        return self._added(Client(self.groups, "team", None, regex=REGEX))

    @rule(target=members, topics=st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    def join_classic(self, topics: list[str]) -> Any:
        group = self._group()
        if group is None or group.is_empty:
            return multiple()
        member = ClassicClient(self.groups, topics)
        self.live.append(member)
        member.join()
        return member

    def _added(self, member: Client) -> Client:
        self.live.append(member)
        member.join()
        return member

    @rule(member=members)
    def heartbeat(self, member: Any) -> None:
        if member in self.live:
            member.heartbeat()

    @rule()
    def everybody_heartbeats(self) -> None:
        for member in self.live:
            member.heartbeat()

    @rule(member=members)
    def becomes_slow(self, member: Any) -> None:
        member.is_slow = True

    @rule(member=members)
    def gives_back(self, member: Any) -> None:
        member.is_slow = False
        if member in self.live:
            member.release()
            member.heartbeat()

    @rule(member=members, topics=st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    def subscribes_to_other_topics(self, member: Any, topics: list[str]) -> None:
        if member not in self.live or isinstance(member, ClassicClient) or member.regex:
            return
        member.topics = topics
        if member.epoch > 0:
            member.heartbeat(subscribed_topic_names=topics)

    @rule(member=consumes(members))
    def leaves(self, member: Any) -> None:
        if member in self.live:
            member.leave()
            self.live.remove(member)

    @rule(member=consumes(members))
    def dies(self, member: Any) -> None:
        if member in self.live:
            self.live.remove(member)

    @rule(
        member=consumes(members),
        target=members,
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, unique=True),
    )
    def restarts(self, member: Any, topics: list[str]) -> Any:
        """A static member stops and comes back under another id."""
        if member not in self.live or getattr(member, "instance_id", None) is None:
            return multiple()
        member.leave(-2)
        self.live.remove(member)
        self._group()
        back = Client(self.groups, "team", topics, instance_id=member.instance_id)
        return self._added(back)

    # -- the world -------------------------------------------------------------------------------

    @rule(name=st.sampled_from(TOPICS), count=st.integers(1, 4))
    def topic_appears_or_grows(self, name: str, count: int) -> None:
        first = self.sizes.get(name, 0)
        if first == 0:
            self.groups.create_topic(name, count)
        elif first < 8:
            self.groups.grow_topic(name, first, first + count)
        else:
            return
        self.sizes[name] = first + count

    @rule(name=st.sampled_from(TOPICS))
    def topic_vanishes(self, name: str) -> None:
        if self.sizes.pop(name, 0):
            self.groups.delete_topic(name)
            for member in self.live:
                member.owned.pop(name, None)

    @rule(elapsed_ms=st.sampled_from([500, 5000, 20_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.groups.advance(elapsed_ms)

    @rule()
    def commits_stop(self) -> None:
        self.groups.log.is_committing_at_once = False

    @rule()
    def commits_go_on(self) -> None:
        self._commit()

    def _commit(self) -> None:
        self.groups.log.is_committing_at_once = True
        self.groups.log.commit()
        self._late_answers()

    def _late_answers(self) -> None:
        for member in self.live:
            if isinstance(member, Client):
                member.take_late()

    @rule()
    def appends_fail_for_a_heartbeat(self) -> None:
        self.groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        for member in self.live:
            member.heartbeat()
        self.groups.log.append_error = ErrorCode.NONE

    @rule()
    def leadership_moves(self) -> None:
        """Everything written is read back; the group is what it was."""
        self._commit()
        before = dump(self._group())
        self.groups.fail_over()
        assert dump(self._group()) == before

    @rule()
    def leadership_moves_and_loses_what_was_not_committed(self) -> None:
        self.groups.fail_over(keep=self.groups.log.high_watermark)
        self.groups.log.is_committing_at_once = True
        self.groups.log.commit()
        for member in self.live:
            if isinstance(member, Client):
                member.last, member.is_unsure = None, True

    # -- what always holds -----------------------------------------------------------------------

    def _group(self) -> ConsumerGroup | None:
        found = self.groups.state.groups.get("team")
        return found if isinstance(found, ConsumerGroup) else None

    @invariant()
    def nobody_reads_what_another_member_reads(self) -> None:
        group = self._group() if hasattr(self, "groups") else None
        if group is None:
            return
        readers: dict[tuple[str, int], str] = {}
        for member in self.live:
            if member.member_id not in group.members:
                continue  # fenced, and not yet aware of it
            for name, partitions in member.owned.items():
                for index in partitions:
                    other = readers.setdefault((name, index), member.member_id)
                    assert other == member.member_id, f"{name}-{index} is read by two members"

    @invariant()
    def books_agree(self) -> None:
        group = self._group() if hasattr(self, "groups") else None
        if group is None:
            return
        owners: dict[Any, str] = {}
        for member in group.members.values():
            for owned in (member.assigned, member.pending_revocation):
                for topic_id, partitions in owned.items():
                    for index in partitions:
                        assert (topic_id, index) not in owners
                        owners[topic_id, index] = member.member_id
        books = {
            (topic_id, index): owner
            for topic_id, partitions in group.owners.items()
            for index, owner in partitions.items()
        }
        assert books == owners
        seen = set()
        for target in group.targets.values():
            for topic_id, partitions in target.items():
                for index in partitions:
                    assert (topic_id, index) not in seen
                    seen.add((topic_id, index))
        assert group.targets.keys() <= group.members.keys()
        assert group.assignment_epoch <= group.group_epoch
        assert group.size_bytes == (
            GROUP_BYTES
            + len("team")
            + sum(member.size_bytes for member in group.members.values())
            + PARTITION_BYTES * len(seen)
            + NAME_BYTES * sum(1 + len(each.topic_names) for each in group.resolved.values())
        )
        assert self.groups.coordinator._memory.used_bytes == group.size_bytes

    @invariant()
    def each_member_has_a_session_and_each_revocation_an_end(self) -> None:
        group = self._group() if hasattr(self, "groups") else None
        if group is None or not self.groups.log.is_committing_at_once:
            return
        timers = self.groups.timers
        assert {member_id for kind, member_id in timers if kind == "session"} == set(group.members)
        revoking = {
            member.member_id
            for member in group.members.values()
            if member.state is MemberState.UNREVOKED_PARTITIONS and not member.uses_classic_protocol
        }
        assert {member_id for kind, member_id in timers if kind == "rebalance"} == revoking
        assert {member_id for _, member_id in timers} <= group.members.keys()

    def teardown(self) -> None:
        if not hasattr(self, "groups"):
            return
        self._commit()
        for member in self.live:
            member.is_slow = False
            member.release()
        # The dead are fenced, expressions are looked up, and the living do what they are asked.
        for _ in range(30):
            self.groups.advance(5000)
            for member in self.live:
                member.heartbeat()
                member.release()
        group = self._group()
        if group is None:
            assert not self.live
            return
        assert set(group.members) == {member.member_id for member in self.live}
        if not self.live:
            return
        assert group.state_name == "Stable"
        assert group.metadata_hash == TopicHashes().of_group(
            group.subscribed_topic_names, self.groups.broker.image
        )
        readers: dict[tuple[str, int], list[str]] = {}
        for member in self.live:
            for name, partitions in member.owned.items():
                for index in partitions:
                    readers.setdefault((name, index), []).append(member.member_id)
        wanted = {
            (name, index)
            for name, size in self.sizes.items()
            if group.is_subscribed_to(name)
            for index in range(size)
        }
        assert set(readers) == wanted
        assert all(len(each) == 1 for each in readers.values())


def dump(group: ConsumerGroup | None) -> Any:
    """Everything of a group that its records say, or that follows from it."""
    if group is None:
        return None
    return (
        group.group_epoch,
        group.metadata_hash,
        group.assignment_epoch,
        group.assignment_timestamp_ms,
        group.state_name,
        group.members,
        group.static_members,
        {member_id: target for member_id, target in group.targets.items() if target},
        group.resolved,
        {name_of(topic_id): partitions for topic_id, partitions in group.owners.items()},
        set(group.subscribed_topic_names),
        +group.regex_counts,
        +group.assignor_counts,
        group.classic_member_count,
    )


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None
)
TestConsumerGroup = ConsumerGroupMachine.TestCase
