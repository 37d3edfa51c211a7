"""Static members and subscriptions by regular expression."""

from __future__ import annotations

from typing import Any

import pytest
import re2

from moldau.broker.coordinator.core.expressions import MAX_EXPRESSION_BYTES, MAX_REMEMBERED
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    ConsumerGroupMember,
    ResolvedRegularExpression,
)
from moldau.broker.coordinator.group.core.metadata_hash import TopicHashes
from moldau.broker.coordinator.group.core.regular_expressions import (
    MIN_REFRESH_INTERVAL_MS,
    ResolveRegularExpressions,
)
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.runtime.slices import SLICE_MS
from tests.unit.broker.coordinator.group.consumer_harness import SESSION_MS, ConsumerShard
from tests.unit.broker.coordinator.harness import HOUR_MS


def shard(*topics: str, **config: Any) -> ConsumerShard:
    groups = ConsumerShard(**config)
    for name in topics:
        groups.create_topic(name, 2)
    return groups


def test_a_static_member_that_comes_back_finds_its_partitions() -> None:
    groups = shard("events")
    first = groups.consumer("team", ["events"], instance_id="one")
    second = groups.consumer("team", ["events"], instance_id="two")
    first.join()
    second.join()
    groups.settle([first, second])
    owned, epoch = dict(first.owned), groups.consumer_group().group_epoch
    assert first.leave(-2) is ErrorCode.NONE
    groups.settle([second])
    assert len(second.owned["events"]) == 1
    back = groups.consumer("team", ["events"], instance_id="one")
    back.join()
    assert back.owned == owned
    assert groups.consumer_group().group_epoch == epoch
    groups.settle([back, second])


def test_a_static_member_that_stays_away_is_fenced() -> None:
    groups = shard("events")
    member = groups.consumer("team", ["events"], instance_id="one")
    member.join()
    member.leave(-2)
    groups.advance(SESSION_MS - 1000)
    assert groups.consumer_group().members
    groups.advance(2000)
    assert groups.group_state() == "Empty"


def test_a_static_member_leaves_for_good_with_minus_one() -> None:
    groups = shard("events")
    member = groups.consumer("team", ["events"], instance_id="one")
    member.join()
    assert member.leave() is ErrorCode.NONE
    assert groups.group_state() == "Empty"


def test_a_static_member_with_the_same_id_comes_back() -> None:
    groups = shard("events")
    member = groups.consumer("team", ["events"], instance_id="one")
    member.join()
    member.leave(-2)
    member.join()
    assert member.owned == {"events": {0, 1}}


def test_a_failover_keeps_the_place_of_a_static_member() -> None:
    groups = shard("events")
    member = groups.consumer("team", ["events"], instance_id="one")
    member.join()
    member.leave(-2)
    groups.fail_over()
    back = groups.consumer("team", ["events"], instance_id="one")
    back.join()
    assert back.owned == {"events": {0, 1}}
    groups.fail_over()
    assert list(groups.consumer_group().members) == [back.member_id]


def test_a_look_up_that_runs_is_not_begun_again_because_a_commit_takes_too_long() -> None:
    groups = shard("log-a")
    groups.holds_lookups = True
    groups.log.is_committing_at_once = False
    member = groups.consumer("team", regex="log-.*")
    member.ask(**member.full())
    assert len(groups.lookups) == 1
    groups.advance(5000)  # offsets.commit.timeout.ms
    assert member.last.answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    member.ask(**member.full())
    assert len(groups.lookups) == 1
    groups.log.commit()
    groups.log.is_committing_at_once = True
    groups.run_lookups()
    member.epoch = member.last.answer.member_epoch
    member.heartbeat()
    assert member.owned == {"log-a": {0, 1}}


def test_an_expression_stands_for_the_topics_whose_whole_name_it_matches() -> None:
    groups = shard("log-a", "log-b", "my-log")
    member = groups.consumer("team", regex="log-.*")
    assert member.join().member_epoch == 1
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}, "log-b": {0, 1}}
    assert groups.consumer_group().is_subscribed_to("log-a")
    assert not groups.consumer_group().is_subscribed_to("my-log")


def test_names_and_expression_add_up() -> None:
    groups = shard("log-a", "other")
    member = groups.consumer("team", ["other"], regex="log-.*")
    member.join()
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}, "other": {0, 1}}


def test_topics_that_the_member_may_not_describe_do_not_count() -> None:
    groups = shard("log-a", "log-b")
    member = groups.consumer("team", regex="log-.*", authorize=lambda name: name == "log-b")
    member.join()
    groups.settle([member])
    assert member.owned == {"log-b": {0, 1}}


def test_new_topics_are_found_but_not_more_often_than_every_ten_seconds() -> None:
    groups = shard("log-a")
    member = groups.consumer("team", regex="log-.*")
    member.join()
    groups.settle([member])
    groups.create_topic("log-b", 2)
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}}
    groups.advance(MIN_REFRESH_INTERVAL_MS)
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}, "log-b": {0, 1}}


def test_a_member_is_described_with_its_expression() -> None:
    groups = shard("log-a")
    groups.consumer("team", regex="log-.*").join()
    (described,) = groups.described().members
    assert described.subscribed_topic_regex == "log-.*"


def test_a_join_by_expression_that_could_not_be_written_looks_up_when_it_comes_again() -> None:
    groups = shard("log-a")
    member = groups.consumer("team", regex="log-.*")
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert member.error(**member.full()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    groups.log.append_error = ErrorCode.NONE
    member.join()
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}}


def has_its_hash(groups: ConsumerShard) -> bool:
    """Whether the group's hash is that of the topics that it is subscribed to."""
    group = groups.consumer_group()
    wanted = TopicHashes().of_group(group.subscribed_topic_names, groups.broker.image)
    return group.metadata_hash == wanted


def test_the_hash_of_a_group_is_always_that_of_its_topics() -> None:
    groups = shard("a", "b", "log-c")
    first = groups.consumer("team", ["a"], instance_id="i")
    second = groups.consumer("team", ["a", "b"])
    first.join()
    assert has_its_hash(groups)
    second.join()
    assert has_its_hash(groups)
    second.heartbeat(subscribed_topic_names=["b"])
    assert has_its_hash(groups)
    second.heartbeat(subscribed_topic_names=[], subscribed_topic_regex="log-.*")
    assert has_its_hash(groups)
    first.leave(-2)
    third = groups.consumer("team", ["b"], instance_id="i")
    third.join()
    assert groups.consumer_group().is_subscribed_to("a") is False
    assert has_its_hash(groups)
    second.leave()
    assert has_its_hash(groups)


def test_topics_that_are_new_while_no_broker_coordinates_the_group_are_found() -> None:
    groups = shard("log-a")
    member = groups.consumer("team", regex="log-.*")
    member.join()
    groups.settle([member])
    groups.broker.depose(0)
    groups.create_topic("log-b", 2)
    groups.advance(MIN_REFRESH_INTERVAL_MS)
    groups.broker.elect(0)
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}, "log-b": {0, 1}}


def test_expressions_are_looked_up_again_after_the_refresh_interval() -> None:
    groups = shard("log-a", group_consumer_regex_refresh_interval_ms=20_000)
    allowed = {"log-a"}
    groups.create_topic("log-b", 2)
    member = groups.consumer("team", regex="log-.*", authorize=lambda name: name in allowed)
    member.join()
    groups.settle([member])
    allowed.add("log-b")
    groups.advance(20_000)
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}, "log-b": {0, 1}}


def test_expressions_are_looked_up_after_the_coordinators_clock_has_gone_back() -> None:
    groups = shard("log-a")
    groups.broker.jump_wall_clock(HOUR_MS)
    member = groups.consumer("team", regex="log-.*")
    member.join()
    groups.settle([member])
    groups.broker.jump_wall_clock(-HOUR_MS)
    groups.create_topic("log-b", 2)
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}, "log-b": {0, 1}}


def test_deleted_topics_leave_an_expression() -> None:
    groups = shard("log-a", "log-b")
    member = groups.consumer("team", regex="log-.*")
    member.join()
    groups.settle([member])
    groups.delete_topic("log-b")
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}}


def test_a_changed_expression_takes_the_old_one_away() -> None:
    groups = shard("log-a", "tmp-a")
    member = groups.consumer("team", regex="log-.*")
    member.join()
    groups.settle([member])
    groups.advance(MIN_REFRESH_INTERVAL_MS)
    member.heartbeat(subscribed_topic_regex="tmp-.*")
    groups.settle([member])
    assert member.owned == {"tmp-a": {0, 1}}
    assert list(groups.consumer_group().resolved) == ["tmp-.*"]
    member.heartbeat(subscribed_topic_regex="")
    groups.settle([member])
    assert member.owned == {}
    assert not groups.consumer_group().resolved


def test_an_expression_that_others_have_is_known_at_once() -> None:
    groups = shard("log-a")
    groups.consumer("team", regex="log-.*").join()
    groups.holds_lookups = True
    second = groups.consumer("team", regex="log-.*")
    second.join()
    assert not groups.lookups
    assert groups.consumer_group().group_epoch == 3


def test_the_last_subscriber_takes_the_expression_along() -> None:
    groups = shard("log-a")
    first, second = groups.consumer("team", regex="log-.*"), groups.consumer("team", ["log-a"])
    first.join()
    second.join()
    groups.settle([first, second])
    first.leave()
    assert not groups.consumer_group().resolved
    groups.fail_over()
    assert not groups.consumer_group().resolved
    assert groups.consumer_group().is_subscribed_to("log-a")


def test_the_last_of_several_subscribers_of_an_expression_takes_its_topics_along() -> None:
    groups = shard("log-a", "other")
    members = [groups.consumer("team", regex="log-.*") for _ in range(2)]
    stays = groups.consumer("team", ["other"])
    for member in (*members, stays):
        member.join()
    groups.settle([*members, stays])
    members[0].leave()
    assert groups.consumer_group().is_subscribed_to("log-a")
    members[1].leave()
    assert not groups.consumer_group().is_subscribed_to("log-a")


def test_a_topic_that_another_member_names_stays_when_an_expression_goes() -> None:
    groups = shard("log-a")
    by_name, by_regex = groups.consumer("team", ["log-a"]), groups.consumer("team", regex="log-.*")
    by_name.join()
    by_regex.join()
    groups.settle([by_name, by_regex])
    by_regex.leave()
    epoch = groups.consumer_group().group_epoch
    groups.settle([by_name])
    assert by_name.owned == {"log-a": {0, 1}}
    groups.fail_over()
    groups.settle([by_name])
    assert groups.consumer_group().group_epoch == epoch, "the topics were right the first time"


def test_without_new_topics_nothing_is_looked_up_before_the_refresh_interval() -> None:
    groups = shard("log-a")
    member = groups.consumer("team", regex="log-.*")
    member.join()
    groups.settle([member])
    groups.create_topic("log-b", 2)
    groups.advance(MIN_REFRESH_INTERVAL_MS)
    groups.settle([member])
    steps = groups.lookup_steps
    groups.advance(MIN_REFRESH_INTERVAL_MS)
    groups.settle([member])
    assert groups.lookup_steps == steps


def resolve(groups: ConsumerShard, resolved: dict[str, set[str]] | None) -> int:
    """The result of a look-up comes; how many records it leads to."""
    command = ResolveRegularExpressions("team", frozenset(resolved or {}), None)
    found = None
    if resolved is not None:
        found = {
            expression: ResolvedRegularExpression(frozenset(names), 5, 6)
            for expression, names in resolved.items()
        }
    result = groups.state.consumer_groups.regular_expressions_resolved(command, found)
    return len(result.records)


def test_a_look_up_that_failed_writes_nothing() -> None:
    groups = shard("log-a")
    groups.consumer("team", regex="log-.*").join()
    assert resolve(groups, None) == 0
    assert resolve(groups, {}) == 0


def test_a_look_up_of_one_expression_leaves_the_topics_of_the_others() -> None:
    groups = shard("log-a", "tmp-a")
    members = [groups.consumer("team", regex=each) for each in ("log-.*", "tmp-.*")]
    for member in members:
        member.join()
    groups.advance(MIN_REFRESH_INTERVAL_MS)
    groups.settle(members)
    assert sorted(groups.consumer_group().resolved) == ["log-.*", "tmp-.*"]
    assert resolve(groups, {"log-.*": {"log-a"}}) == 1, "no new epoch"
    assert resolve(groups, {"log-.*": {"log-a", "log-b"}}) == 2


def test_one_look_up_at_a_time_and_a_late_result_changes_nothing() -> None:
    groups = shard("log-a")
    groups.holds_lookups = True
    member = groups.consumer("team", regex="log-.*")
    member.join()
    member.heartbeat()
    assert len(groups.lookups) == 1
    member.leave()
    groups.delete_group()
    groups.run_lookups()
    assert "team" not in groups.state.groups


def test_a_look_up_that_could_not_be_written_is_done_again() -> None:
    groups = shard("log-a")
    groups.holds_lookups = True
    member = groups.consumer("team", regex="log-.*")
    member.join()
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    groups.run_lookups()
    groups.log.append_error = ErrorCode.NONE
    groups.holds_lookups = False
    member.heartbeat()
    groups.settle([member])
    assert member.owned == {"log-a": {0, 1}}


def test_a_look_up_holds_the_loop_for_a_slice_of_time_whatever_a_topic_costs() -> None:
    groups = shard(*(f"t-{number}" for number in range(50)))

    def authorize(name: str) -> bool:
        groups.advance(0.75)
        return name == "t-7"

    groups.consumer("team", regex="t-.*", authorize=authorize).join()
    assert groups.lookup_steps > 15
    assert groups.longest_step_ms <= SLICE_MS + 0.75
    assert groups.consumer_group().resolved["t-.*"].topic_names == {"t-7"}


def test_only_topics_that_the_member_may_describe_are_matched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = shard("log-a", "log-b", "other")
    matched = matched_texts(monkeypatch)
    groups.consumer("team", regex="log-.*", authorize=lambda name: name != "log-a").join()
    assert matched == [CONSUMER_OFFSETS.topic, "log-b", "other"]


def test_a_look_up_ends_when_its_partition_is_led_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = shard("log-a")
    matched = matched_texts(monkeypatch)
    groups.holds_lookups = True
    groups.consumer("team", regex="log-.*").join()
    groups.broker.depose(0)
    groups.run_lookups()
    assert not matched


def matched_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is matched with any expression from now on."""
    texts = []
    fullmatch = re2._Regexp.fullmatch

    def recorded(self: Any, text: str) -> Any:
        texts.append(text)
        return fullmatch(self, text)

    monkeypatch.setattr(re2._Regexp, "fullmatch", recorded)
    return texts


@pytest.mark.parametrize(
    "expression",
    [
        "((.?){0,30}){0,30}" * 3,
        "x" * (MAX_EXPRESSION_BYTES + 1),
        "\u00e9" * (MAX_EXPRESSION_BYTES // 2 + 1),
        "x" * 32_000,
        "(",
    ],
    ids=["expensive", "long", "long in UTF-8", "very long", "broken"],
)
def test_an_expression_that_is_none_or_beyond_the_limits_is_refused(expression: str) -> None:
    member = shard("log-a").consumer("team", regex=expression)
    answer = member.ask(**member.full())
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert 0 < len(answer.error_message) < 2 * MAX_EXPRESSION_BYTES


def test_the_longest_expression_is_taken() -> None:
    groups = shard("y")
    member = groups.consumer("team", regex="x" * (MAX_EXPRESSION_BYTES - 2) + "|y")
    member.join()
    groups.settle([member])
    assert member.owned == {"y": {0, 1}}


def test_a_refusal_is_remembered_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_expression = re2.compile

    def counting(expression: str, options: Any) -> Any:
        compiled.append(expression)
        return compile_expression(expression, options)

    monkeypatch.setattr(re2, "compile", counting)
    member = shard("log-a").consumer("team")

    def refuse(expression: str) -> None:
        answer = member.ask(**{**member.full(), "subscribed_topic_regex": expression})
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    for _ in range(3):
        refuse("remembered(")
    assert compiled == ["remembered("]
    for number in range(MAX_REMEMBERED):
        refuse(f"{number}(")
    refuse("remembered(")
    assert compiled.count("remembered(") == 2


def test_a_topic_that_no_group_is_subscribed_to_any_more_takes_no_room() -> None:
    index: dict[str, set[str]] = {}
    one, other = ConsumerGroup("one", index), ConsumerGroup("other", index)
    member = ConsumerGroupMember("member", subscribed_topic_names=frozenset({"log-a"}))
    one.update_member(member)
    other.update_member(member)
    one.remove_member("member")
    assert index == {"log-a": {"other"}}
    other.remove_member("member")
    assert index == {}
