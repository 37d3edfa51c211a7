"""The authorizer's vocabulary, under the name the broker's handlers know it by.

Owns nothing: the controller asks the same questions, so the words live in `moldau.server`.
"""

from moldau.server.authorizer import (
    CLUSTER_RESOURCE_NAME,
    SUPPORTED_OPERATIONS,
    AllowAllAuthorizer,
    Authorizer,
    Operation,
    ResourceType,
    authorized_operations,
)

__all__ = [
    "CLUSTER_RESOURCE_NAME",
    "SUPPORTED_OPERATIONS",
    "AllowAllAuthorizer",
    "Authorizer",
    "Operation",
    "ResourceType",
    "authorized_operations",
]
