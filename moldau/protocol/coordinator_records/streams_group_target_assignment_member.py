"""StreamsGroupTargetAssignmentMember (type 21 of `__consumer_offsets`, version 0): the tasks that
a streams group's member shall have."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import Int32, String


@coordinator_record(21, versions="0", flexible="none")
class StreamsGroupTargetAssignmentMemberKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class TaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = field()


@coordinator_record(21, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue(Message):
    active_tasks: list[TaskIds] = field()
    standby_tasks: list[TaskIds] = field()
    warmup_tasks: list[TaskIds] = field()
