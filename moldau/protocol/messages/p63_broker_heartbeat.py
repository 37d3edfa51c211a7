"""BrokerHeartbeat (63) v0-v2: a broker reports to the controller that it is alive, and what
state it wants.

Versions: 1 lists failed directories, 2 cordoned ones.
"""

from moldau.protocol.schema import FailableResponse, Request, field
from moldau.protocol.types import Bool, Int32, Int64, Uuid


class BrokerHeartbeatRequest(Request["BrokerHeartbeatResponse"], versions="0-2", flexible="0+"):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64 = 0
    want_fence: Bool = False
    want_shut_down: Bool = False
    offline_log_dirs: list[Uuid] = field(since=1, tag=0)
    cordoned_log_dirs: list[Uuid] | None = field(None, since=2, nullable="2+", tag=1)


class BrokerHeartbeatResponse(FailableResponse, answers=BrokerHeartbeatRequest):
    is_caught_up: Bool = False
    is_fenced: Bool = True
    should_shut_down: Bool = False
