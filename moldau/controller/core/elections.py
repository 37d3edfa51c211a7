"""ElectLeaders, and the elections that the active controller holds by itself from time to time.

Owns: which partitions get an election, when preferred leaders (`auto.leader.rebalance.enable`),
unclean ones and the sweep are due, and how far the sweep has come (KIP-460). Must not: choose the
leader of a partition (`partition_changes` does), or keep time. Invariants: an unclean election
happens only where the sender or `unclean.leader.election.enable` allows it; nothing is due on a
standby; one turn changes at most as many partitions as fit one batch without holding up requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Final

from moldau.controller.core.partition_changes import (
    UNCHANGED,
    Election,
    PartitionChanger,
    PartitionTarget,
    Step,
    election_step,
    leaving_step,
)
from moldau.controller.core.partition_index import PartitionKey
from moldau.controller.core.result import (
    MAX_RECORDS_PER_REQUEST,
    Asked,
    ControllerResult,
    VersionedRecord,
)
from moldau.controller.core.state import ControllerState
from moldau.metadata.image import NO_LEADER, PartitionRegistration, TopicImage
from moldau.metadata.steps import Steps
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p43_elect_leaders as p43

MAX_ELECTIONS_PER_PASS: Final = 1_000
"""How many leaders one pass of a periodic election moves (Kafka's limit); the next follows soon."""


_ELECTIONS: Final[Mapping[int, Election]] = {
    p43.ElectionType.PREFERRED: Election.PREFERRED,
    p43.ElectionType.UNCLEAN: Election.UNCLEAN,
}
_UNAVAILABLE: Final = {
    Election.PREFERRED: (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "the first replica is not in sync, or not live",
    ),
    Election.UNCLEAN: (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "none of the replicas is live",
    ),
}


def elect_leaders(
    state: ControllerState, request: p43.ElectLeadersRequest, _asked: Asked
) -> Steps[ControllerResult[p43.ElectLeadersResponse]]:
    """Elect leaders of the named partitions, or of all that need one (null)."""
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        return ControllerResult(p43.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
    if request.topic_partitions is None:
        in_need = (
            state.index.without_preferred_leader()
            if election is Election.PREFERRED
            else state.index.without_leader()
        )
        return _elect_all(state, election, iter(list(in_need)), {})
    changer = PartitionChanger(state, election=election)
    response = p43.ElectLeadersResponse()
    result = ControllerResult(response)
    seen: set[tuple[str, int]] = set()
    for wanted in request.topic_partitions:
        answer = p43.ReplicaElectionResult(topic=wanted.topic)
        response.replica_election_results.append(answer)
        topic = state.topic(wanted.topic)
        yield
        for partition_index in wanted.partitions:
            yield
            if (wanted.topic, partition_index) in seen:
                continue  # one answer and one record are enough
            seen.add((wanted.topic, partition_index))
            partition_result, record = _elect_one(changer, election, topic, partition_index)
            answer.partition_result.append(partition_result)
            if record is not None:
                result.records.append(record)
    if len(result.records) > MAX_RECORDS_PER_REQUEST:
        return ControllerResult(p43.ElectLeadersResponse(error_code=ErrorCode.POLICY_VIOLATION))
    return result


def _elect_all(
    state: ControllerState,
    election: Election,
    keys: Iterator[PartitionKey],
    answers: dict[str, p43.ReplicaElectionResult],
) -> ControllerResult[p43.ElectLeadersResponse]:
    """One step of electing everywhere; partitions that need nothing are not in the answer."""
    changer = PartitionChanger(state, election=election)
    records: list[VersionedRecord] = []
    looked_at = 0
    for topic_id, partition_index in islice(keys, state.settings.max_changes_per_step):
        looked_at += 1
        topic = state.image.topics.topics_by_id.get(topic_id)
        if topic is None:
            continue  # deleted since the first step
        partition_result, record = _elect_one(changer, election, topic, partition_index)
        if partition_result.error_code == ErrorCode.ELECTION_NOT_NEEDED:
            continue
        answer = answers.setdefault(topic.name, p43.ReplicaElectionResult(topic=topic.name))
        answer.partition_result.append(partition_result)
        if record is not None:
            records.append(record)
    response = p43.ElectLeadersResponse(replica_election_results=list(answers.values()))
    result = ControllerResult(response, records)
    if looked_at == state.settings.max_changes_per_step:
        result.resume = lambda _asked: _elect_all(state, election, keys, answers)
    return result


def _elect_one(
    changer: PartitionChanger,
    election: Election,
    topic: TopicImage | None,
    partition_index: int,
) -> tuple[p43.PartitionResult, VersionedRecord | None]:
    partition = None if topic is None else topic.partitions.get(partition_index)
    record: VersionedRecord | None = None
    error, message = ErrorCode.NONE, None
    if topic is None or partition is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
    elif not _needs_election(partition, election):
        error, message = ErrorCode.ELECTION_NOT_NEEDED, "the partition has the leader asked for"
    else:
        record = changer.change(topic, partition_index, partition)
        if record is None:
            error, message = _UNAVAILABLE[election]
    result = p43.PartitionResult(
        partition_id=partition_index, error_code=error, error_message=message
    )
    return result, record


def _needs_election(partition: PartitionRegistration, election: Election) -> bool:
    if election is Election.PREFERRED:
        return not partition.has_preferred_leader
    return partition.leader == NO_LEADER


def preferred_leaders_pass(state: ControllerState) -> Step:
    """Give leadership back to preferred replicas that are in sync again."""

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        # Checked first: most preferred replicas that do not lead are out of sync.
        return UNCHANGED if partition.replicas[0] in (partition.isr or partition.elr) else None

    changer = PartitionChanger(state, election=Election.PREFERRED)
    candidates = state.index.without_preferred_leader()
    return changer.step(candidates, target_of, MAX_ELECTIONS_PER_PASS)


def unclean_leaders_pass(state: ControllerState) -> Step:
    """Elect any live replica where no replica leads and the topic's configuration allows it."""
    topics = state.image.topics.topics_by_id
    is_allowed = cache(state.unclean_election_allowed)
    candidates = (key for key in state.index.without_leader() if is_allowed(topics[key[0]].name))
    changer = PartitionChanger(state, election=Election.UNCLEAN)
    return changer.step(candidates, lambda _partition: UNCHANGED, MAX_ELECTIONS_PER_PASS)


NEXT_TURN_DELAY_MS: Final = 10.0
"""How long a task that is not done leaves the loop to others."""

_AT_ONCE: Final = float("-inf")
_NEVER: Final = float("inf")


class PeriodicTasks:
    """The tasks of one active controller. Times are monotonic milliseconds."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        config = state.settings.node_config
        imbalance_ms = 1_000 * config.get_int("leader.imbalance.check.interval.seconds")
        unclean_ms = config.get_int("unclean.leader.election.interval.ms")
        self._passes = ((preferred_leaders_pass, imbalance_ms), (unclean_leaders_pass, unclean_ms))
        self._sweep_brokers: deque[int] = deque()
        self._sweep_partitions: deque[PartitionKey] = deque()
        self.stop()

    def stop(self) -> None:
        """Lead no more: nothing is due."""
        self._passes_due_ms = [_NEVER, _NEVER]
        self._sweep_due_ms = _NEVER
        self._sweep_brokers.clear()
        self._sweep_partitions.clear()

    def start(self, now_ms: float) -> None:
        """Begin to lead: the intervals begin, and what an earlier leader left half done is due."""
        self._passes_due_ms = [now_ms + interval_ms for _, interval_ms in self._passes]
        if not self._state.settings.node_config.get_boolean("auto.leader.rebalance.enable"):
            self._passes_due_ms[0] = _NEVER
        self.sweep_all()

    def sweep_all(self) -> None:
        """Look at once for leaders that may not lead, too; the log may have refused such a turn."""
        members = self._state.index.members()
        self._sweep_brokers = deque(each for each in members if not self._state.is_active(each))
        self.sweep()

    def sweep(self) -> None:
        """Look at once for leaders of all partitions that have none."""
        self._sweep_partitions = deque(self._state.index.without_leader())
        if self._sweep_partitions or self._sweep_brokers:
            self._sweep_due_ms = _AT_ONCE

    def next_due_ms(self) -> float | None:
        """When `run_due` may have something to do; None when never."""
        due_ms = min(*self._passes_due_ms, self._sweep_due_ms)
        return None if due_ms == _NEVER else due_ms

    def run_due(self, now_ms: float) -> list[VersionedRecord]:
        """One turn of one task that is due: records to append as one batch, maybe none."""
        if now_ms >= self._sweep_due_ms:
            step = self._sweep_turn()
            self._sweep_due_ms = _NEVER if step.is_last else now_ms + NEXT_TURN_DELAY_MS
            return step.records
        for index, (elect, interval_ms) in enumerate(self._passes):
            if now_ms >= self._passes_due_ms[index]:
                step = elect(self._state)
                delay_ms = interval_ms if step.is_last else NEXT_TURN_DELAY_MS
                self._passes_due_ms[index] = now_ms + delay_ms
                return step.records
        return []

    def _sweep_turn(self) -> Step:
        """Brokers that lead and may not; then partitions without a leader."""
        while self._sweep_brokers:
            broker_id = self._sweep_brokers[0]
            if self._state.is_active(broker_id):
                self._sweep_brokers.popleft()  # it has been unfenced since
                continue
            step = leaving_step(self._state, broker_id, is_clean=True)
            if step.is_last:
                self._sweep_brokers.popleft()
            if step.records:
                return Step(step.records, is_last=False)
        count = min(self._state.settings.max_changes_per_step, len(self._sweep_partitions))
        keys = [self._sweep_partitions.popleft() for _ in range(count)]
        step = election_step(self._state, keys)
        assert step.is_last, "a turn has no more candidates than a step may change"
        return Step(step.records, is_last=not self._sweep_partitions)
