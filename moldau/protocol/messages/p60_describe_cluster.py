"""DescribeCluster (60) v0-v2: describe the cluster's brokers or controllers.

Versions: 1 adds the kind of endpoint, 2 fenced brokers.
"""

from moldau.constants import MIN_INT32
from moldau.protocol.schema import FailableResponse, Request, Struct, field
from moldau.protocol.types import Bool, Int8, Int32, String


class DescribeClusterRequest(Request["DescribeClusterResponse"], versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Int8 = field(1, since=1)
    include_fenced_brokers: Bool = field(False, since=2)


class DescribeClusterBroker(Struct):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = field(None, nullable="0+")
    is_fenced: Bool = field(False, since=2)


class DescribeClusterResponse(FailableResponse, answers=DescribeClusterRequest):
    error_message: String | None = field(None, nullable="0+")
    endpoint_type: Int8 = field(1, since=1)
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = field()
    cluster_authorized_operations: Int32 = MIN_INT32
