"""Operations and resources (KIP-11, KIP-290), and the authorizer. An answer depends only on
the arguments and on the rules in force, so asking twice does no harm. Every client is allowed
everything yet: listeners serve PLAINTEXT only (config/node_config.py refuses TLS and SASL).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

CLUSTER_RESOURCE_NAME: Final = "kafka-cluster"
"""The one name that a resource of type CLUSTER has."""


class Operation(IntEnum):
    """What a principal wants to do, numbered as in Kafka's ACL requests."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """The kind of resource of an operation, numbered as in Kafka's ACL requests."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


SUPPORTED_OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that mean something on each kind of resource (KIP-430 reports these)."""


class Authorizer:
    """Decides about one operation of one principal on one resource. This one has no rules: every
    principal may do everything, as in Kafka without `authorizer.class.name`.
    """

    __slots__ = ()

    def authorize(
        self,
        principal: str,
        client_host: str,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
    ) -> bool:
        """True when `principal`, coming from `client_host`, may do this."""
        return True

    def authorize_by_resource_type(
        self, principal: str, client_host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """True when the principal may do this to at least one resource of that type (KIP-679)."""
        return True
