"""Kafka's error codes, and the two exceptions of the protocol layer.

Whether a code is retriable or invalidates metadata is as in Apache Kafka 4.3. `client.errors` maps
codes to exceptions.
"""

from enum import IntEnum


class ProtocolError(Exception):
    """Bytes and messages do not fit each other; only its two kinds are ever raised."""


class LocalProtocolError(ProtocolError):
    """We asked for something the protocol cannot express: a mistake of this program."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are not the protocol: close that connection, and nothing else."""


class ErrorCode(IntEnum):
    """An error code of the wire protocol.

    Attributes:
        retriable: the same request may succeed later.
        invalidates_metadata: the sender's view of the cluster is out of date.
        message: the error in a few words.
    """

    retriable: bool
    invalidates_metadata: bool
    message: str

    def __new__(
        cls, code: int, message: str, retriable: bool = False, invalidates_metadata: bool = False
    ) -> "ErrorCode":
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.retriable = retriable
        member.invalidates_metadata = invalidates_metadata
        return member

    @classmethod
    def of(cls, code: int) -> "ErrorCode":
        """Return the member for `code`; an unknown number is UNKNOWN_SERVER_ERROR to a client."""
        member = cls._value2member_map_.get(code)
        return member if isinstance(member, cls) else cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = -1, "unexpected failure inside the server"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "offset outside of what the log holds"
    CORRUPT_MESSAGE = (
        2,
        "corrupt record batch, or a record without a key on a compacted topic",
        True,
    )
    UNKNOWN_TOPIC_OR_PARTITION = (3, "topic or partition not known here", True, True)
    INVALID_FETCH_SIZE = 4, "fetch size not allowed"
    LEADER_NOT_AVAILABLE = (5, "partition has no leader right now", True, True)
    NOT_LEADER_OR_FOLLOWER = (6, "this broker does not hold the role the request needs", True, True)
    REQUEST_TIMED_OUT = (7, "request ran out of time", True)
    BROKER_NOT_AVAILABLE = 8, "broker is not there"
    REPLICA_NOT_AVAILABLE = (9, "replica is not there", True, True)
    MESSAGE_TOO_LARGE = 10, "record batch over the allowed size"
    STALE_CONTROLLER_EPOCH = 11, "controller has been replaced"
    OFFSET_METADATA_TOO_LARGE = 12, "commit's metadata text too long"
    NETWORK_EXCEPTION = (13, "connection lost before the answer", True, True)
    COORDINATOR_LOAD_IN_PROGRESS = (14, "coordinator still reads its state", True)
    COORDINATOR_NOT_AVAILABLE = (15, "no coordinator right now", True)
    NOT_COORDINATOR = (16, "another broker coordinates this", True)
    INVALID_TOPIC_EXCEPTION = 17, "topic name not allowed"
    RECORD_LIST_TOO_LARGE = 18, "record batches over the segment size"
    NOT_ENOUGH_REPLICAS = (19, "too few replicas in sync, nothing was written", True)
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (20, "written, but too few replicas in sync", True)
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, "group generation does not match"
    INCONSISTENT_GROUP_PROTOCOL = 23, "no protocol in common with the group's members"
    INVALID_GROUP_ID = 24, "group id not allowed"
    UNKNOWN_MEMBER_ID = 25, "member not known to the group"
    INVALID_SESSION_TIMEOUT = 26, "session timeout outside of the broker's bounds"
    REBALANCE_IN_PROGRESS = 27, "group rebalances, join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, "commit too large"
    TOPIC_AUTHORIZATION_FAILED = 29, "not permitted on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, "not permitted on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "not permitted on the cluster"
    INVALID_TIMESTAMP = 32, "record timestamp outside of the allowed range"
    UNSUPPORTED_SASL_MECHANISM = 33, "SASL mechanism not offered"
    ILLEGAL_SASL_STATE = 34, "request out of turn in the SASL exchange"
    UNSUPPORTED_VERSION = 35, "version not served"
    TOPIC_ALREADY_EXISTS = 36, "topic exists already"
    INVALID_PARTITIONS = 37, "partition count not allowed"
    INVALID_REPLICATION_FACTOR = 38, "replication factor not possible with the brokers there are"
    INVALID_REPLICA_ASSIGNMENT = 39, "replica assignment not possible"
    INVALID_CONFIG = 40, "configuration value not allowed"
    NOT_CONTROLLER = (41, "another node is the active controller", True)
    INVALID_REQUEST = 42, "request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "not possible with the stored message format"
    POLICY_VIOLATION = 44, "refused by a configured policy"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "gap in the producer's sequence numbers"
    DUPLICATE_SEQUENCE_NUMBER = 46, "producer sequence number seen before"
    INVALID_PRODUCER_EPOCH = 47, "producer epoch is out of date"
    INVALID_TXN_STATE = 48, "transaction is in another state"
    INVALID_PRODUCER_ID_MAPPING = 49, "producer id does not belong to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, "transaction timeout over the broker's maximum"
    CONCURRENT_TRANSACTIONS = (51, "the transactional id is busy with another operation", True)
    TRANSACTION_COORDINATOR_FENCED = 52, "transaction coordinator has been replaced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "not permitted on this transactional id"
    SECURITY_DISABLED = 54, "no authorizer is configured"
    OPERATION_NOT_ATTEMPTED = 55, "left out because another part of the request failed"
    KAFKA_STORAGE_ERROR = (56, "log directory failed", True, True)
    LOG_DIR_NOT_FOUND = 57, "no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "authentication failed"
    UNKNOWN_PRODUCER_ID = 59, "nothing remembered about this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, "partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, "no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "principal neither owns nor may renew the token"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        "token requests need a stronger authenticated connection",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "not permitted on this delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, "delegation token is past its end"
    INVALID_PRINCIPAL_TYPE = 67, "principal type not known"
    NON_EMPTY_GROUP = 68, "group still has members"
    GROUP_ID_NOT_FOUND = 69, "no such group"
    FETCH_SESSION_ID_NOT_FOUND = (70, "no such fetch session", True)
    INVALID_FETCH_SESSION_EPOCH = (71, "fetch session is at another step", True)
    LISTENER_NOT_FOUND = (
        72,
        "leader has no listener of the name the client came in by",
        True,
        True,
    )
    TOPIC_DELETION_DISABLED = 73, "deleting topics is switched off"
    FENCED_LEADER_EPOCH = (74, "leader epoch is behind the broker's", True, True)
    UNKNOWN_LEADER_EPOCH = (75, "leader epoch is ahead of the broker's", True)
    UNSUPPORTED_COMPRESSION_TYPE = 76, "codec not usable with this request version"
    STALE_BROKER_EPOCH = 77, "broker has registered again since"
    OFFSET_NOT_AVAILABLE = (78, "high watermark not yet known to the new leader", True)
    MEMBER_ID_REQUIRED = 79, "join again with the member id in this answer"
    PREFERRED_LEADER_NOT_AVAILABLE = (80, "preferred leader cannot lead now", True, True)
    GROUP_MAX_SIZE_REACHED = 81, "group is full"
    FENCED_INSTANCE_ID = 82, "another member took over this group instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = (83, "no replica may lead now", True, True)
    ELECTION_NOT_NEEDED = (84, "partition already has the leader asked for", True, True)
    NO_REASSIGNMENT_IN_PROGRESS = 85, "partition is not being reassigned"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "group is subscribed to the topic"
    INVALID_RECORD = 87, "record failed validation"
    UNSTABLE_OFFSET_COMMIT = (88, "offsets wait for an open transaction", True)
    THROTTLING_QUOTA_EXCEEDED = (89, "quota used up", True)
    PRODUCER_FENCED = 90, "a newer producer has the transactional id"
    RESOURCE_NOT_FOUND = 91, "no such resource"
    DUPLICATE_RESOURCE = 92, "resource named twice"
    UNACCEPTABLE_CREDENTIAL = 93, "credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, "sender or receiver is not among the voters expected"
    INVALID_UPDATE_VERSION = 95, "update carries a version that does not fit"
    FEATURE_UPDATE_FAILED = 96, "feature level could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "forwarded principal cannot be read"
    SNAPSHOT_NOT_FOUND = 98, "no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "position outside of the snapshot"
    UNKNOWN_TOPIC_ID = (100, "topic id not known here", True, True)
    DUPLICATE_BROKER_REGISTRATION = 101, "a live broker has this id"
    BROKER_ID_NOT_REGISTERED = 102, "no broker registered under this id"
    INCONSISTENT_TOPIC_ID = (103, "topic id differs from the log's", True, True)
    INCONSISTENT_CLUSTER_ID = 104, "cluster id differs from this cluster's"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = (106, "fetch session mixes topic names and topic ids", True)
    INELIGIBLE_REPLICA = 107, "a replica in the new ISR may not be there"
    NEW_LEADER_ELECTED = 108, "change made, and leadership moved"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "offset is in tiered storage"
    FENCED_MEMBER_EPOCH = 110, "member epoch fenced, rejoin with nothing assigned"
    UNRELEASED_INSTANCE_ID = 111, "another member still holds the instance id"
    UNSUPPORTED_ASSIGNOR = 112, "assignor not known to the group"
    STALE_MEMBER_EPOCH = 113, "member epoch is behind, heartbeat first"
    MISMATCHED_ENDPOINT_TYPE = 114, "wrong kind of node for this request"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "kind of node not known"
    UNKNOWN_CONTROLLER_ID = 116, "no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, "telemetry subscription is out of date"
    TELEMETRY_TOO_LARGE = 118, "telemetry over the allowed size"
    INVALID_REGISTRATION = 119, "registration refused by the controller"
    TRANSACTION_ABORTABLE = 120, "transaction can only be aborted now"
    INVALID_RECORD_STATE = 121, "record is not in a state that can be acknowledged"
    SHARE_SESSION_NOT_FOUND = (122, "no such share session", True)
    INVALID_SHARE_SESSION_EPOCH = (123, "share session is at another step", True)
    FENCED_STATE_EPOCH = 124, "share group's state epoch differs"
    INVALID_VOTER_KEY = 125, "voter key names another replica"
    DUPLICATE_VOTER = 126, "already a voter"
    VOTER_NOT_FOUND = 127, "not a voter"
    INVALID_REGULAR_EXPRESSION = 128, "regular expression cannot be read"
    REBOOTSTRAP_REQUIRED = 129, "start over from the bootstrap servers"
    STREAMS_INVALID_TOPOLOGY = 130, "streams topology not allowed"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "streams topology epoch not allowed"
    STREAMS_TOPOLOGY_FENCED = 132, "streams topology epoch is behind"
    SHARE_SESSION_LIMIT_REACHED = (133, "share sessions are used up", True)
