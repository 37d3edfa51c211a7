"""Random histories of a controller core among simulated brokers, and proof that the checks bite.

A failing run names its seed: `run(seed, EVENTS)` in `controller_world` repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from moldau.controller.core import (
    cluster_control,
    configuration_control,
    feature_control,
    partition_changes,
    partition_index,
    placement,
    replica_reports,
    topic_control,
)
from moldau.controller.core.partition_changes import Step, _Transition, leaving_step
from moldau.controller.core.state import ControllerState
from moldau.protocol.errors import ErrorCode

from .controller_checks import Checker, Violation
from .controller_world import World, run

EVENTS: Final = 120
SEEDS: Final = 20
MAX_SEEDS_PER_MUTATION: Final = 120


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 10))
def test_no_history_breaks_an_invariant(first_seed: int) -> None:
    refusals = epochs = lost = 0
    for seed in range(first_seed, first_seed + 10):
        try:
            world = run(seed, EVENTS)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")
        refusals += world.refusals
        epochs += world.epoch
        lost += world.lost_batches
    assert refusals > 50, "stale requests were tried"
    assert epochs > 10, "leadership changed"
    assert lost > 20, "and uncommitted batches were lost"


def test_a_history_is_repeated_by_its_seed() -> None:
    assert run(7, EVENTS).image.digest() == run(7, EVENTS).image.digest()


Mutation = Callable[[pytest.MonkeyPatch], None]


def _ineligible_members_get_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica_reports, "_is_eligible", lambda state, member: True)


def _partition_epochs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    check = replica_reports._check

    def lenient(state: Any, topic: Any, broker_id: int, wanted: Any) -> ErrorCode:
        partition = topic.partitions.get(wanted.partition_index)
        if partition is not None and wanted.partition_epoch < partition.partition_epoch:
            wanted.partition_epoch = partition.partition_epoch
        return check(state, topic, broker_id, wanted)

    patch.setattr(replica_reports, "_check", lenient)


def _leader_epochs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    check = replica_reports._check

    def lenient(state: Any, topic: Any, broker_id: int, wanted: Any) -> ErrorCode:
        partition = topic.partitions.get(wanted.partition_index)
        if partition is not None and wanted.leader_epoch < partition.leader_epoch:
            wanted.leader_epoch = partition.leader_epoch
        return check(state, topic, broker_id, wanted)

    patch.setattr(replica_reports, "_check", lenient)


def _every_start_counts_as_clean(patch: pytest.MonkeyPatch) -> None:
    def clean(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        return leaving_step(state, broker_id, is_clean=True, **more)

    patch.setattr(cluster_control, "leaving_step", clean)


def _any_live_replica_is_elected_as_if_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Transition, "_may_lead", lambda self, replica: self.is_acceptable(replica))


def _brokers_that_shut_down_may_lead(patch: pytest.MonkeyPatch) -> None:
    def is_active(self: ControllerState, broker_id: int) -> bool:
        broker = self.broker(broker_id)
        return broker is not None and not broker.fenced

    patch.setattr(ControllerState, "is_active", is_active)


def _fencing_leaves_the_partitions_alone(patch: pytest.MonkeyPatch) -> None:
    def nothing(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        return Step([], is_last=True)

    patch.setattr(cluster_control, "leaving_step", nothing)


def _the_fencing_comes_with_the_first_step(patch: pytest.MonkeyPatch) -> None:
    def hasty(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        records = leaving_step(state, broker_id, is_clean=is_clean, **more).records
        return Step(records, is_last=True)

    patch.setattr(cluster_control, "leaving_step", hasty)


def _leaving_brokers_may_come_back_half_way(patch: pytest.MonkeyPatch) -> None:
    def is_active(self: ControllerState, broker_id: int) -> bool:
        broker = self.broker(broker_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    def blind(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        # Besides, no step looks at what was done before: the first one's list is all.
        step = leaving_step(state, broker_id, is_clean=is_clean, **more)
        return Step(step.records, is_last=step.is_last or broker_id in state.leaving)

    patch.setattr(ControllerState, "is_active", is_active)
    patch.setattr(cluster_control, "leaving_step", blind)


def _eligible_leaders_survive_a_lower_minimum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(configuration_control, "clear_eligible_leaders", lambda state, records: [])


def _eligible_leaders_survive_a_time_without_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(feature_control, "forget_eligible_leaders", lambda state: [])


def _eligible_leaders_lead_while_they_do_not_count(patch: pytest.MonkeyPatch) -> None:
    begin = _Transition.__init__

    def trusting(self: _Transition, partition: Any, *more: Any) -> None:
        begin(self, partition, *more)
        self.elr = partition.elr

    patch.setattr(_Transition, "__init__", trusting)


def _eligible_leaders_survive_a_large_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Transition, "_is_isr_large_enough", lambda self: False)


def _unclean_elections_are_not_marked(patch: pytest.MonkeyPatch) -> None:
    elect = _Transition.elect

    def silent(self: _Transition) -> None:
        elect(self)
        self.recovery_state = self.partition.leader_recovery_state

    patch.setattr(_Transition, "elect", silent)


def _records_are_of_the_newest_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition_changes, "partition_record_version", lambda level: 2)


def _removed_replicas_keep_the_leader_epoch(patch: pytest.MonkeyPatch) -> None:
    record_leader = _Transition._record_leader

    def lazy(self: _Transition, record: Any) -> None:
        record_leader(self, record)
        if self.leader == self.partition.leader:
            record.leader = -2

    patch.setattr(_Transition, "_record_leader", lazy)


def _the_index_forgets_eligible_leaders(patch: pytest.MonkeyPatch) -> None:
    original = partition_index.PartitionIndex._move

    def move_all(self: Any, topic_id: Any, index: int, old: Any, new: Any) -> None:
        trimmed = None if new is None else new._replace(elr=())
        before = None if old is None else old._replace(elr=())
        original(self, topic_id, index, before, trimmed)

    patch.setattr(partition_index.PartitionIndex, "_move", move_all)


def _reassignments_end_before_anybody_caught_up(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: _Transition) -> None:
        replicas = tuple(each for each in self.replicas if each not in self.removing)
        if self.removing or self.adding:
            self.isr = self.replicas = replicas
            self.removing = self.adding = ()

    patch.setattr(_Transition, "complete_reassignment", hasty)


def _fenced_brokers_are_in_a_new_isr(patch: pytest.MonkeyPatch) -> None:
    new_partition = placement.new_partition

    def careless(state: Any, replicas: Any) -> Any:
        made = new_partition(state, replicas)
        return made._replace(isr=made.replicas)

    patch.setattr(topic_control, "new_partition", careless)


def _lost_brokers_stay_eligible(patch: pytest.MonkeyPatch) -> None:
    real = partition_changes.PartitionTarget

    def forgiving(**fields: Any) -> Any:
        return real(**{**fields, "lost": ()})

    patch.setattr(partition_changes, "PartitionTarget", forgiving)


def _replicas_leave_a_lost_directory_unharmed(patch: pytest.MonkeyPatch) -> None:
    real = replica_reports.PartitionTarget

    def trusting(**fields: Any) -> Any:
        if "directories" not in fields:
            return real(**fields)  # of AlterPartition
        return real(directories=fields["directories"])

    patch.setattr(replica_reports, "PartitionTarget", trusting)


def _unclean_elections_need_no_permission(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControllerState, "unclean_election_allowed", lambda self, name: True)
    # The standby asks its own, unchanged state.
    patch.setattr(Checker, "_may_be_unclean", _asks_the_configuration)


def _asks_the_configuration(self: Checker, topic_id: Any, old: Any, new: Any) -> bool:
    state = self.standby.state
    name = state.image.topics.topics_by_id[topic_id].name
    is_last_leader = old.last_known_elr == (new.leader,)
    value = state._topic_value(name, "unclean.leader.election.enable")
    return bool(value) or is_last_leader or self.is_unclean_asked


MUTATIONS: Final[list[Mutation]] = [
    _ineligible_members_get_in,
    _partition_epochs_are_not_compared,
    _leader_epochs_are_not_compared,
    _every_start_counts_as_clean,
    _any_live_replica_is_elected_as_if_in_sync,
    _brokers_that_shut_down_may_lead,
    _fencing_leaves_the_partitions_alone,
    _the_fencing_comes_with_the_first_step,
    _leaving_brokers_may_come_back_half_way,
    _eligible_leaders_survive_a_lower_minimum,
    _eligible_leaders_survive_a_time_without_them,
    _eligible_leaders_lead_while_they_do_not_count,
    _eligible_leaders_survive_a_large_isr,
    _unclean_elections_are_not_marked,
    _records_are_of_the_newest_version,
    _removed_replicas_keep_the_leader_epoch,
    _the_index_forgets_eligible_leaders,
    _reassignments_end_before_anybody_caught_up,
    _fenced_brokers_are_in_a_new_isr,
    _replicas_leave_a_lost_directory_unharmed,
    _lost_brokers_stay_eligible,
    _unclean_elections_need_no_permission,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__.strip("_"))
def test_the_checks_find_an_injected_bug(mutate: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in range(MAX_SEEDS_PER_MUTATION):
        try:
            run(seed, EVENTS)
        except AssertionError as found:
            print(f"found with seed {seed}: {found}")
            return
    pytest.fail(f"not found in {MAX_SEEDS_PER_MUTATION} seeds of {EVENTS} events")


def test_a_world_without_events_is_quiet() -> None:
    world = World(1)
    world.settle()
    assert world.image.cluster.brokers == {}
