"""StreamsGroupCurrentMemberAssignment (type 22 of `__consumer_offsets`, version 0): the tasks of a
streams group's member now."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import Int8, Int32, String


@coordinator_record(22, versions="0", flexible="none")
class StreamsGroupCurrentMemberAssignmentKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class TaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = field()
    assignment_epochs: list[Int32] | None = field(nullable="0+", tag=0)


@coordinator_record(22, versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue(Message):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    active_tasks: list[TaskIds] = field()
    standby_tasks: list[TaskIds] = field()
    warmup_tasks: list[TaskIds] = field()
    active_tasks_pending_revocation: list[TaskIds] = field()
    standby_tasks_pending_revocation: list[TaskIds] = field()
    warmup_tasks_pending_revocation: list[TaskIds] = field()
