"""FindCoordinator (10) v0-v6: find the broker that coordinates a group, a transactional id or a
share partition.

Versions: 1 adds the kind of key. 4 asks for many keys at once. 6 knows share partitions.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Int8, Int16, Int32, String


class FindCoordinatorRequest(Request["FindCoordinatorResponse"], versions="0-6", flexible="3+"):
    key: String = field("", until=3)
    key_type: Int8 = field(0, since=1)
    coordinator_keys: list[String] = field(since=4)


class Coordinator(Struct):
    key: String = field("", since=4)
    node_id: Int32 = field(0, since=4)
    host: String = field("", since=4)
    port: Int32 = field(0, since=4)
    error_code: Int16 = field(0, since=4)
    error_message: String | None = field("", since=4, nullable="4+", ignorable=True)


class FindCoordinatorResponse(Message, answers=FindCoordinatorRequest):
    throttle_time_ms: Int32 = field(0, since=1, ignorable=True)
    error_code: Int16 = field(0, until=3)
    error_message: String | None = field("", since=1, until=3, nullable="1-3", ignorable=True)
    node_id: Int32 = field(0, until=3)
    host: String = field("", until=3)
    port: Int32 = field(0, until=3)
    coordinators: list[Coordinator] = field(since=4)
