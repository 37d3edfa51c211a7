"""The group coordinator of a broker: from requests to state machines and back.

Owns the runtime of `__consumer_offsets`, what requests over several groups or partitions add up to,
what is answered when a partition cannot be asked, the look-ups of regular expressions, and the
metrics. Must not decide about groups (`core` does) or permissions (the handlers do). Invariant:
every request gets one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from moldau.broker.coordinator.core.expressions import InvalidExpression, compile_expression
from moldau.broker.coordinator.core.replies import Answerable, CallbackReply, Collector
from moldau.broker.coordinator.group.core.classic_group import ClassicGroupState
from moldau.broker.coordinator.group.core.consumer_group import ResolvedRegularExpression
from moldau.broker.coordinator.group.core.context import (
    ClientInfo,
    ConsumerGroupSettings,
    GroupSettings,
)
from moldau.broker.coordinator.group.core.joining import Joining, join_error
from moldau.broker.coordinator.group.core.offset_requests import (
    CommitLimits,
    PreparedCommit,
    prepare_commit,
    prepare_transactional,
    refused_fetch,
)
from moldau.broker.coordinator.group.core.regular_expressions import ResolveRegularExpressions
from moldau.broker.coordinator.group.core.state import GroupState
from moldau.broker.coordinator.ports import RuntimeSettings
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p12_heartbeat import HeartbeatResponse
from moldau.protocol.messages.p13_leave_group import LeaveGroupResponse
from moldau.protocol.messages.p14_sync_group import SyncGroupResponse
from moldau.protocol.messages.p15_describe_groups import DescribedGroup
from moldau.protocol.messages.p47_offset_delete import OffsetDeleteResponse
from moldau.runtime.slices import LoopSlices

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices
    from moldau.broker.coordinator.core.result import CoordinatorResult
    from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
    from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
    from moldau.broker.coordinator.ports import RuntimePorts
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.metadata.steps import Steps
    from moldau.protocol.messages.p08_offset_commit import OffsetCommitRequest
    from moldau.protocol.messages.p09_offset_fetch import OffsetFetchRequestGroup
    from moldau.protocol.messages.p11_join_group import JoinGroupRequest
    from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
    from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberResponse
    from moldau.protocol.messages.p14_sync_group import SyncGroupRequest
    from moldau.protocol.messages.p16_list_groups import ListedGroup
    from moldau.protocol.messages.p28_txn_offset_commit import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
    )
    from moldau.protocol.messages.p47_offset_delete import OffsetDeleteRequest
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.server.request import RequestContext


MANAGER: Final = "kafka.coordinator.group:type=GroupMetadataManager,name="
COORDINATOR: Final = "kafka.server:type=group-coordinator-metrics,name="
KINDS: Final = ("classic", "consumer")
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
        registry.gauge(MANAGER + "NumOffsets", self._offset_count)
        registry.gauge(MANAGER + "NumGroups", lambda: self._group_count(lambda group: True))
        for state in ClassicGroupState:
            registry.gauge(f"{MANAGER}NumGroups{state.value}", partial(self._in_state, state.value))
        for kind in KINDS:
            registry.gauge(COORDINATOR + "group-count", partial(self._of_kind, kind), protocol=kind)
        for name in CONSUMER_STATES:
            registry.gauge(
                COORDINATOR + "consumer-group-count",
                partial(self._in_state, name, "consumer"),
                state=name.lower(),
            )

    def count(self, name: str, amount: int) -> None:
        self._counters[name].value += amount

    def _offset_count(self) -> float:
        return float(sum(state.offsets.count for _, state in self._states()))

    def _in_state(self, name: str, kind: str = "classic") -> float:
        return self._group_count(lambda group: group.kind == kind and group.state_name == name)

    def _of_kind(self, kind: str) -> float:
        return self._group_count(lambda group: group.kind == kind)

    def _group_count(self, is_counted: Callable[[ClassicGroup | ConsumerGroup], bool]) -> float:
        # The copy is atomic: the metrics may be collected in another thread.
        return float(
            sum(
                is_counted(group)
                for _, state in self._states()
                for group in list(state.groups.values())
            )
        )


Operation = Callable[[GroupState, float], "CoordinatorResult"]

_FOLLOWED: Final = frozenset({"topics_delta", "configs_delta", "features_delta"})


class GroupCoordinator:
    """Answers the requests of groups; belongs to the data loop."""

    def __init__(self, services: BrokerServices, ports: RuntimePorts) -> None:
        self._services = services
        self._settings = GroupSettings.from_config(services.node_config)
        self._consumer_settings = ConsumerGroupSettings.from_config(
            services.node_config, services.broker_id
        )
        self.runtime: CoordinatorRuntime[GroupState] = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            self._make_state,
            execute=self._execute,
            settings=RuntimeSettings.for_groups(services.node_config),
            ports=ports,
        )
        self.metrics = GroupMetrics(services.registry, self.runtime.states)
        self._deleted_while_loading: dict[int, frozenset[str]] = {}

    def _make_state(self, partition_index: int) -> GroupState:
        return GroupState(
            partition_index,
            settings=self._settings,
            consumer_settings=self._consumer_settings,
            metadata=lambda: self._services.metadata.image,
            random_id=self._random_id,
            count=self.metrics.count,
            deleted_topics=partial(
                self._deleted_while_loading.pop, partition_index, frozenset[str]()
            ),
        )

    def _random_id(self) -> str:
        return str(UUID(int=self._services.random.getrandbits(128), version=4))

    def _execute(self, partition_index: int, command: object) -> None:
        assert isinstance(command, ResolveRegularExpressions), f"unknown command {command!r}"
        self._services.start(
            self._resolve(partition_index, command),
            f"regular expressions of group {command.group_id}",
        )

    def partition_of(self, group_id: str) -> int | None:
        return self.runtime.partition_of(group_id)

    # -- the cluster -----------------------------------------------------------------------------

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.runtime.on_metadata_update(delta, image)
        if not delta.touched & _FOLLOWED:
            return
        deleted = frozenset(topic.name for topic in delta.topics_delta.deleted.values())
        for partition_index in range(self.runtime.partition_count):
            self._tell(partition_index, delta, image, deleted)

    def _tell(
        self,
        partition_index: int,
        delta: MetadataDelta,
        image: MetadataImage,
        deleted: frozenset[str],
    ) -> None:
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

    async def close(self) -> None:
        await self.runtime.close()

    def ask(
        self,
        group_id: str,
        reply_to: Answerable,
        operation: Operation,
        on_error: Callable[[ErrorCode], object],
        *,
        passes_limit: bool = False,
    ) -> None:
        """Have a group's state machine answer `reply_to`, or answer why it cannot be asked.

        Args:
            passes_limit: for membership: a member that cannot get through in time is expelled.
        """
        error = self.runtime.call(group_id, operation, passes_limit=passes_limit)
        if error is not ErrorCode.NONE:
            reply_to.respond(on_error(error))

    def join_group(self, context: RequestContext, request: JoinGroupRequest) -> Iterator[None]:
        """Answer JoinGroup: a step for each protocol, and then one that joins."""
        version = context.api_version
        joining = yield from Joining.read(request, version, client_of(context), context)
        self.ask(
            request.group_id,
            context,
            lambda state, now_ms: state.join_group(joining, now_ms),
            lambda error: join_error(error, request.member_id, version),
            passes_limit=True,
        )
        _release_if_waiting(context)

    def sync_group(self, context: RequestContext, request: SyncGroupRequest) -> None:
        self.ask(
            request.group_id,
            context,
            lambda state, _now_ms: state.protocol_of(request.group_id).sync_group(request, context),
            lambda error: SyncGroupResponse(error_code=error),
            passes_limit=True,
        )
        _release_if_waiting(context)

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> None:
        """Answer Heartbeat. While the group is being loaded, all its members keep their place."""
        self.ask(
            request.group_id,
            context,
            lambda state, now_ms: state.protocol_of(request.group_id).heartbeat(
                request, context, now_ms
            ),
            lambda error: HeartbeatResponse(
                error_code=ErrorCode.NONE
                if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                else error
            ),
            passes_limit=True,
        )

    def leave_group(
        self,
        context: RequestContext,
        request: LeaveGroupRequest,
        reply_to: Answerable,
        answers: list[MemberResponse],
    ) -> None:
        """Answer LeaveGroup, `request` and answer in the form of version 3 and later; `answers` has
        one for each member of the request, with its names.
        """
        self.ask(
            request.group_id,
            reply_to,
            lambda state, now_ms: state.protocol_of(request.group_id).leave_group(
                request, reply_to, now_ms, answers
            ),
            lambda error: LeaveGroupResponse(error_code=error),
            passes_limit=True,
        )
        context.hold_if_waiting()

    # -- offsets ---------------------------------------------------------------------------------

    def commit_offsets(
        self, context: RequestContext, request: OffsetCommitRequest, reply_to: Answerable
    ) -> Iterator[None]:
        """Answer OffsetCommit; the topics in `request` exist and have names and ids. A step for
        each partition, and then one that commits them.
        """
        version = context.api_version
        limits = self._commit_limits(request.group_id)
        prepared = yield from prepare_commit(request, limits, self._services.clock.now_ms())
        self.ask(
            request.group_id,
            reply_to,
            lambda state, _now_ms: state.offset_requests.commit(
                request, prepared, version, reply_to
            ),
            prepared.refused,
        )
        context.hold_if_waiting()

    def prepare_transactional(
        self, request: TxnOffsetCommitRequest
    ) -> Steps[PreparedCommit[TxnOffsetCommitResponse]]:
        """Prepare what `txn_offset_commit` stores; a step for each partition."""
        limits = self._commit_limits(request.group_id)
        return prepare_transactional(request, limits, self._services.clock.now_ms())

    def _commit_limits(self, group_id: str) -> CommitLimits:
        return CommitLimits(
            self._settings.max_metadata_bytes, self.runtime.max_batch_bytes(group_id)
        )

    def txn_offset_commit(
        self,
        request: TxnOffsetCommitRequest,
        prepared: PreparedCommit[TxnOffsetCommitResponse],
        done: Callable[[TxnOffsetCommitResponse], None],
        api_version: int = 5,
    ) -> None:
        """Store offsets as part of a transaction that has been verified."""
        reply_to = CallbackReply(done)
        self.ask(
            request.group_id,
            reply_to,
            lambda state, _now_ms: state.offset_requests.commit_transactional(
                request, prepared, api_version, reply_to
            ),
            prepared.refused,
        )

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, reply_to: Answerable, *, require_stable: bool
    ) -> None:
        """Answer OffsetFetchResponseGroup, or the steps that make it."""
        is_confirmed = self._services.is_confirmed()
        self.ask(
            request.group_id,
            reply_to,
            lambda state, _now_ms: state.offset_requests.fetch(
                request, reply_to, require_stable=require_stable, is_confirmed=is_confirmed
            ),
            partial(refused_fetch, request),
        )

    def delete_offsets(self, request: OffsetDeleteRequest, reply_to: Answerable) -> None:
        self.ask(
            request.group_id,
            reply_to,
            lambda state, _now_ms: state.offset_requests.delete(request, reply_to),
            lambda error: OffsetDeleteResponse(error_code=error),
        )

    # -- administration --------------------------------------------------------------------------

    def describe_group(self, group_id: str, api_version: int, reply_to: Answerable) -> None:
        self.ask(
            group_id,
            reply_to,
            lambda state, _now_ms: state.describe_group(group_id, api_version, reply_to),
            lambda error: DescribedGroup(group_id=group_id, error_code=error, error_message=None),
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
        """Give `done` the groups of all partitions led here, each a ListedGroup; or an error while
        a partition is being loaded or cannot be.
        """

        def ended(parts: list[list[ListedGroup] | ErrorCode]) -> None:
            listed: list[ListedGroup] = []
            for part in parts:
                if not isinstance(part, ErrorCode):
                    listed += part
                elif part is not ErrorCode.NOT_COORDINATOR:
                    done(part, [])
                    return
            done(ErrorCode.NONE, listed)

        collector = Collector(ended)
        for partition_index in range(self.runtime.partition_count):
            part = collector.part()

            def operation(
                state: GroupState, _now_ms: float, part: CallbackReply = part
            ) -> CoordinatorResult:
                return state.list_groups(states, types, part)

            error = self.runtime.call(partition_index, operation)
            if error is not ErrorCode.NONE:
                part.respond(error)
        collector.all_asked()

    async def _resolve(self, partition_index: int, command: ResolveRegularExpressions) -> None:
        """Find the topics that the regular expressions of a consumer group stand for, without those
        that the member's client may not describe, and tell the group. It never holds the loop for
        longer than a slice, and ends with a result as long as the partition is led here.
        """
        image = self._services.metadata.image
        slices = LoopSlices(self._services.clock)
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
        matched = await self._services.matcher.match(
            patterns, names, is_wanted=lambda: self.runtime.coordinator_epoch(partition_index) >= 0
        )
        if matched is None:
            return
        found = dict.fromkeys(command.expressions, frozenset[str]())
        found.update(zip(expressions, map(frozenset, matched), strict=True))
        metadata_offset = image.provenance.last_contained_offset

        def operation(state: GroupState, now_ms: float) -> CoordinatorResult:
            return state.consumer_groups.regular_expressions_resolved(
                command,
                {
                    expression: ResolvedRegularExpression(names, metadata_offset, int(now_ms))
                    for expression, names in found.items()
                },
            )

        self.runtime.call(partition_index, operation, passes_limit=True)


def client_of(context: RequestContext) -> ClientInfo:
    return ClientInfo(context.client_id or "", f"/{context.client_host}")


def _release_if_waiting(context: RequestContext) -> None:
    """Give the request's bytes back if its answer has to wait for other members."""
    if not context.is_answered:
        context.request.release_body()
