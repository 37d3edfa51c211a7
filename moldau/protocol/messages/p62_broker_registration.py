"""BrokerRegistration (62) v0-v4: a broker registers with the controller.

Versions: 1 adds ZooKeeper migration, 2 log directories. 3 adds the previous broker epoch. 4
lets a feature's lowest level be zero.
"""

from moldau.protocol.metadata_records.nodes import Endpoint
from moldau.protocol.metadata_records.nodes import Feature as Feature
from moldau.protocol.schema import FailableResponse, Request, field
from moldau.protocol.types import ZERO_UUID, Bool, Int32, Int64, String, Uuid

Listener = Endpoint


class BrokerRegistrationRequest(
    Request["BrokerRegistrationResponse"], versions="0-4", flexible="0+"
):
    broker_id: Int32 = 0
    cluster_id: String = ""
    incarnation_id: Uuid = ZERO_UUID
    listeners: list[Listener] = field()
    features: list[Feature] = field()
    rack: String | None = field("", nullable="0+")
    is_migrating_zk_broker: Bool = field(False, since=1)
    log_dirs: list[Uuid] = field(since=2, ignorable=True)
    previous_broker_epoch: Int64 = field(-1, since=3, ignorable=True)


class BrokerRegistrationResponse(FailableResponse, answers=BrokerRegistrationRequest):
    broker_epoch: Int64 = -1
