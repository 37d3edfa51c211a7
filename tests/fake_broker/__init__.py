"""A scriptable fake Kafka cluster in the test's own process: real sockets, no broker's code.

    async with FakeCluster(2, topics={"t": 3}) as cluster:
        fault = cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        ...  # a client on cluster.bootstrap_servers
        cluster.move_leader("t", 0)
        await cluster.until(lambda: len(cluster.records("t", 0)) == 5)
        assert cluster.recorder.count(ApiKey.PRODUCE) == 2

Faults (`faults.py`): AnswerError, Throttle, CutRequest, CutResponse, Stall, WrongCorrelation,
Garbage, Replace, Change, Run; `nth`, `times`, `node_id` and `when` say which requests meet them.
Releases (`versions.py`): KAFKA_2_1, KAFKA_2_8, KAFKA_3_5, KAFKA_4_3, LATEST. Security
(`authentication.py`): TLS, PLAIN, SCRAM, OAUTHBEARER. `ThreadedCluster` is for blocking clients.
"""

from tests.fake_broker.authentication import Certificates, Security
from tests.fake_broker.cluster import FakeCluster, Settings
from tests.fake_broker.faults import (
    AnswerError,
    Change,
    CutRequest,
    CutResponse,
    Fault,
    Garbage,
    Replace,
    Run,
    Stall,
    Throttle,
    WrongCorrelation,
)
from tests.fake_broker.recorder import Received
from tests.fake_broker.threaded import ThreadedCluster
from tests.fake_broker.versions import (
    KAFKA_2_1,
    KAFKA_2_8,
    KAFKA_3_5,
    KAFKA_4_3,
    LATEST,
    RELEASES,
    limited,
)

__all__ = [
    "KAFKA_2_1",
    "KAFKA_2_8",
    "KAFKA_3_5",
    "KAFKA_4_3",
    "LATEST",
    "RELEASES",
    "AnswerError",
    "Certificates",
    "Change",
    "CutRequest",
    "CutResponse",
    "FakeCluster",
    "Fault",
    "Garbage",
    "Received",
    "Replace",
    "Run",
    "Security",
    "Settings",
    "Stall",
    "ThreadedCluster",
    "Throttle",
    "WrongCorrelation",
    "limited",
]
