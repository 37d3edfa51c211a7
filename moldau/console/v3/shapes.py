"""The common form of Confluent's documents: kind, metadata, relations; and their schemas.

Must not ask a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from moldau.console.calls import Call
from moldau.console.problems import Problem
from moldau.console.schemas import STRING, Schema, array, named, nullable, record

BASE: Final = "/v3/clusters/{cluster_id}"
MAX_NUMBER: Final = 2**31 - 1

RELATED: Final = named("Relationship", record({"related": STRING}))
METADATA: Final = named(
    "ResourceMetadata", record({"self": STRING}, {"resource_name": nullable(STRING)})
)
LIST_METADATA: Final = named(
    "ResourceCollectionMetadata", record({"self": STRING}, {"next": nullable(STRING)})
)
Document = dict[str, Any]


def described(
    name: str, required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Schema:
    """The schema of a resource."""
    own = {"kind": STRING, "metadata": METADATA, "cluster_id": STRING, **required}
    return named(name, record(own, optional))


def listed(name: str, item: Schema) -> Schema:
    """The schema of a list of resources."""
    return named(name, record({"kind": STRING, "metadata": LIST_METADATA, "data": array(item)}))


class Places:
    """Where the resources of a cluster are, and what they are called.

    Args:
        cluster_id: the cluster's.
    """

    def __init__(self, call: Call, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self._base = f"{call.base}/v3/clusters/{quote(cluster_id, safe='')}"
        self._name = f"crn:///kafka={cluster_id}"

    @classmethod
    async def of(cls, call: Call) -> Places:
        """Those of the call's cluster. Raises: Problem, KafkaError."""
        return cls(call, await call.cluster_id())

    def at(self, *segments: object) -> str:
        """The address of a path below the cluster's."""
        return "/".join((self._base, *(quote(str(each), safe=":-*") for each in segments)))

    def related(self, *segments: object) -> Document:
        return {"related": self.at(*segments)}

    def resource(self, kind: str, name: str, *segments: object) -> Document:
        """The beginning of a resource's document.

        Args:
            name: behind the cluster's, such as `/topic=flights`.
            segments: where it is.
        """
        return {
            "kind": kind,
            "metadata": {"self": self.at(*segments), "resource_name": self._name + name},
            "cluster_id": self.cluster_id,
        }

    def collection(self, kind: str, data: list[Document], *segments: object) -> Document:
        """A list's document."""
        return {"kind": kind, "metadata": {"self": self.at(*segments), "next": None}, "data": data}


def number_in(call: Call, name: str) -> int:
    """A number in the path. Raises: Problem: 404: it is none."""
    text = call.path[name]
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_NUMBER:
        return int(text)
    raise Problem(404, f"{name} in the path is no number that anything has")
