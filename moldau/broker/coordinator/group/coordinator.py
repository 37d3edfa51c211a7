"""The group coordinator of a broker: from requests to state machines and back.

Owns the runtime of `__consumer_offsets`, what requests over several groups or partitions add up to,
what is answered when a partition cannot be asked, the look-ups of regular expressions, and the
metrics. Must not decide about groups (`core` does) or permissions (the handlers do). Invariant:
every request gets one answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from moldau.broker.coordinator.core.expressions import InvalidExpression, compile_expression
from moldau.broker.coordinator.core.kept_memory import KeptMemory
from moldau.broker.coordinator.core.result import Answerable
from moldau.broker.coordinator.expression_matcher import TooCostly
from moldau.broker.coordinator.group.core.classic_group import ClassicGroupState
from moldau.broker.coordinator.group.core.consumer_group import GroupContext
from moldau.broker.coordinator.group.core.consumer_groups import check_request
from moldau.broker.coordinator.group.core.consumer_member import ResolvedRegularExpression
from moldau.broker.coordinator.group.core.context import (
    ClientInfo,
    ConsumerGroupSettings,
    GroupSettings,
)
from moldau.broker.coordinator.group.core.offset_requests import CommitLimits
from moldau.broker.coordinator.group.core.regular_expressions import ResolveRegularExpressions
from moldau.broker.coordinator.group.core.state import GroupState
from moldau.broker.coordinator.key_partitions import partition_for
from moldau.broker.coordinator.ports import RuntimeSettings, memory_limit
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p15_describe_groups import DescribedGroup
from moldau.protocol.messages.p69_consumer_group_describe import (
    DescribedGroup as ConsumerDescribedGroup,
)
from moldau.runtime.slices import LoopSlices
from moldau.server.fair_line import FairLine
from moldau.text import quoted, short_name

if TYPE_CHECKING:
    from random import Random

    from moldau.broker.coordinator.expression_matcher import ExpressionMatcher
    from moldau.broker.coordinator.ports import RuntimePorts
    from moldau.config import NodeConfig
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.protocol.messages.p16_list_groups import ListedGroup
    from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.server.request import RequestContext

logger = logging.getLogger(__name__)

MAX_LOOK_UPS: Final = 1_000
"""Groups whose regular expressions wait to be looked up; one more tries again with a heartbeat."""

MAX_LOOK_UP_TASKS: Final = 4

MANAGER: Final = "kafka.coordinator.group:type=GroupMetadataManager,name="
COORDINATOR: Final = "kafka.server:type=group-coordinator-metrics,name="
CONSUMER_STATES: Final = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")
COUNTED: Final = (
    "offset-commit",
    "offset-expiration",
    "offset-deletion",
    "group-completed-rebalance",
    "consumer-group-rebalance",
)


class GroupMetrics:
    """Gauges over the loaded partitions, and counters of events, under Kafka's names."""

    def __init__(
        self, registry: Registry, states: Callable[[], Iterator[tuple[int, GroupState]]]
    ) -> None:
        self._states = states
        self._counters = {name: registry.counter(f"{COORDINATOR}{name}-count") for name in COUNTED}
        registry.gauge(
            MANAGER + "NumOffsets",
            lambda: float(sum(state.offsets.count for _, state in self._states())),
        )
        count = self._group_count
        registry.gauge(MANAGER + "NumGroups", count)
        for state in ClassicGroupState:
            of_state = partial(count, "classic", state.value)
            registry.gauge(f"{MANAGER}NumGroups{state.value}", of_state)
        for kind in ("classic", "consumer"):
            registry.gauge(COORDINATOR + "group-count", partial(count, kind), protocol=kind)
        for name in CONSUMER_STATES:
            registry.gauge(
                COORDINATOR + "consumer-group-count",
                partial(count, "consumer", name),
                state=name.lower(),
            )

    def count(self, name: str, amount: int) -> None:
        self._counters[name].value += amount

    def _group_count(self, kind: str | None = None, name: str | None = None) -> float:
        # The copy is atomic: the metrics may be collected in another thread.
        return float(
            sum(
                kind in (None, group.kind) and (name is None or group.state_name == name)
                for _, state in self._states()
                for group in list(state.groups.values())
            )
        )


class GroupCoordinator:
    """Answers the requests of groups; belongs to the data loop."""

    def __init__(
        self,
        config: NodeConfig,
        ports: RuntimePorts,
        *,
        image: Callable[[], MetadataImage],
        random: Random,
        matcher: ExpressionMatcher,
    ) -> None:
        self._ports = ports
        self._image = image
        self._random = random
        self._matcher = matcher
        self._settings = GroupSettings.from_config(config)
        self._consumer_settings = ConsumerGroupSettings.from_config(
            config, broker_id=ports.broker_id
        )
        self._partition_count = int(config["offsets.topic.num.partitions"])
        self._memory = memory_limit(config["moldau.group.coordinator.max.bytes"], "groups")
        self.runtime: CoordinatorRuntime[GroupState] = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            self._make_state,
            self._execute,
            RuntimeSettings.for_groups(config),
            ports,
        )
        self.metrics = GroupMetrics(ports.registry, self.runtime.states)
        self.ask = self.runtime.ask
        self.partition_of = self.runtime.partition_of
        self.close = self.runtime.close
        self._look_ups: FairLine[tuple[int, ResolveRegularExpressions]] = FairLine(MAX_LOOK_UPS)
        self._look_up_task_count = 0
        self._deleted_while_loading: dict[int, frozenset[str]] = {}

    def partition_to_be(self, group_id: str) -> int:
        """The partition that keeps a group, or will once there is one: the topic is created with
        `offsets.topic.num.partitions`, so that it is known before.
        """
        return partition_for(group_id, self.runtime.partition_count or self._partition_count)

    def check_heartbeat(self, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
        """What is wrong with it in any group. Raises: Refusal."""
        check_request(request, api_version, self._consumer_settings.assignors)

    def _make_state(self, partition_index: int) -> GroupState:
        context = GroupContext(
            self._settings,
            self._consumer_settings,
            metadata=self._image,
            random_id=self._random_id,
            count=self.metrics.count,
            memory=KeptMemory(self._memory),
        )
        deleted = partial(self._deleted_while_loading.pop, partition_index, frozenset[str]())
        return GroupState(context, deleted)

    def _random_id(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def _execute(self, partition_index: int, command: object) -> None:
        assert isinstance(command, ResolveRegularExpressions), f"unknown command {command!r}"
        left_out = self._look_ups.put((partition_index, command), command.principal)
        if left_out is not None:
            (left_out_index, dropped), principal = left_out
            logger.warning(
                "%d groups wait for their regular expressions, further ones of %s try again later",
                len(self._look_ups),
                quoted(principal),
            )
            self._ports.soon(lambda: self._resolved(left_out_index, dropped, None))
        if self._look_up_task_count < MAX_LOOK_UP_TASKS:
            self._look_up_task_count += 1
            self._ports.start(self._look_up(), "regular expressions of groups")

    async def _look_up(self) -> None:
        """Resolve the expressions of the groups that wait, principals in turn."""
        try:
            while (waiting := self._look_ups.take()) is not None:
                await self._resolve(*waiting)
        finally:
            self._look_up_task_count -= 1

    # -- the cluster -----------------------------------------------------------------------------

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.runtime.on_metadata_update(delta, image)
        if not delta.touched & {"topics_delta", "configs_delta", "features_delta"}:
            return
        deleted = frozenset(topic.name for topic in delta.topics_delta.deleted.values())
        for partition_index in range(self.runtime.partition_count):
            error = self.runtime.call(
                partition_index,
                lambda state, _now_ms: state.on_metadata_update(delta, image),
                passes_limit=True,
            )
            if error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._deleted_while_loading.pop(partition_index, None)
            elif deleted:
                known = self._deleted_while_loading.get(partition_index, frozenset())
                self._deleted_while_loading[partition_index] = known | deleted

    def commit_limits(self, group_id: str) -> CommitLimits:
        return CommitLimits(
            self._settings.max_metadata_bytes, self.runtime.max_batch_bytes(group_id)
        )

    def describe_group(self, group_id: str, api_version: int, reply_to: Answerable) -> None:
        self.ask(
            group_id,
            reply_to,
            lambda state, _now_ms: state.describe_group(group_id, api_version, reply_to),
            lambda error: DescribedGroup(group_id=group_id, error_code=error),
        )

    def describe_consumer_group(self, group_id: str, reply_to: Answerable) -> None:
        self.ask(
            group_id,
            reply_to,
            lambda state, _now_ms: state.consumer_groups.describe_group(group_id, reply_to),
            lambda error: ConsumerDescribedGroup(group_id=group_id, error_code=error),
        )

    def delete_group(self, group_id: str, reply_to: Answerable) -> None:
        self.ask(
            group_id,
            reply_to,
            lambda state, _now_ms: state.delete_group(group_id, reply_to),
            lambda error: error,
        )

    def list_groups(
        self,
        states: frozenset[str],
        types: frozenset[str],
        done: Callable[[ErrorCode, list[ListedGroup]], None],
    ) -> None:
        """Give `done` the ListedGroups of all partitions led here, or why one cannot be asked."""
        self.runtime.list_each(
            range(self.runtime.partition_count),
            lambda state, reply_to: state.list_groups(states, types, reply_to),
            lambda errors, listed: done(errors[0], []) if errors else done(ErrorCode.NONE, listed),
        )

    async def _resolve(self, partition_index: int, command: ResolveRegularExpressions) -> None:
        """Find the topics that the regular expressions of a consumer group stand for, without those
        that the member's client may not describe, and tell the group. It never holds the loop for
        longer than a slice, and ends with a result as long as the partition is led here.
        """
        image = self._image()
        slices = LoopSlices(self._ports.clock)
        expressions, patterns = [], []
        for expression in sorted(command.expressions):
            try:
                patterns.append(compile_expression(expression))
                expressions.append(expression)
            except InvalidExpression:
                # Read from the log, where another coordinator accepted it; it matches nothing.
                continue
            if slices.is_over:
                await slices.next()
        names = []
        for name in list(image.topics.topics_by_name):
            if command.authorize_topic is None or command.authorize_topic(name):
                names.append(name)
            if slices.is_over:
                await slices.next()
        try:
            matched = await self._matcher.match(
                patterns,
                names,
                principal=command.principal,
                is_wanted=lambda: self.runtime.coordinator_epoch(partition_index) >= 0,
            )
        except TooCostly as problem:
            # The members have joined long ago: there is no answer that could say it.
            logger.warning(
                "group %s of %s subscribes to no topics by its expressions: %s",
                *(quoted(short_name(each)) for each in (command.group_id, command.principal)),
                problem,
            )
            matched = [[] for _ in patterns]
        if matched is None:
            return
        found = dict.fromkeys(command.expressions, frozenset[str]())
        found.update(zip(expressions, map(frozenset, matched), strict=True))
        metadata_offset = image.provenance.last_contained_offset
        now_ms = int(self._ports.clock.now_ms())
        resolved = {
            expression: ResolvedRegularExpression(names, metadata_offset, now_ms)
            for expression, names in found.items()
        }
        self._resolved(partition_index, command, resolved)

    def _resolved(
        self,
        partition_index: int,
        command: ResolveRegularExpressions,
        resolved: Mapping[str, ResolvedRegularExpression] | None,
    ) -> None:
        """Hand the topics of its expressions to a group; None: they are looked up later."""
        self.runtime.call(
            partition_index,
            lambda state, _now_ms: state.consumer_groups.regular_expressions_resolved(
                command, resolved
            ),
            passes_limit=True,
        )


def client_of(context: RequestContext) -> ClientInfo:
    return ClientInfo(
        context.client_id or "", f"/{context.client_host}", principal=context.principal
    )
