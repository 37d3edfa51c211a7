"""The secret of a cluster that its answers about unknown SCRAM users are made of.

The active controller writes it once, with the first credential, and it never changes: every node
gives the same answer about a name, before and after a restart. It is a dynamic configuration of a
broker that cannot exist, so that Apache Kafka's nodes and tools read the record, and no request
describes or alters it.
"""

from __future__ import annotations

from typing import Final

from moldau.metadata.image.configs import ConfigResourceType, ConfigsImage, config_record
from moldau.protocol.metadata_records import ConfigRecord
from moldau.protocol.schema import Message

SECRET_KEY: Final = "moldau.scram.secret"
#: A number, since Apache Kafka's controllers take these names for ids; no node has a negative one.
SECRET_RESOURCE: Final = "-1"


def scram_secret(configs: ConfigsImage) -> str | None:
    """The cluster's secret; None while no controller has written it."""
    return configs.get(ConfigResourceType.BROKER, SECRET_RESOURCE).get(SECRET_KEY)


def is_scram_secret(record: Message) -> bool:
    """Whether a record gives the cluster its secret."""
    return isinstance(record, ConfigRecord) and record.name == SECRET_KEY


def scram_secret_record(secret: str) -> tuple[Message, int]:
    """The record that gives the cluster its secret, with its version."""
    return config_record(ConfigResourceType.BROKER, SECRET_RESOURCE, SECRET_KEY, secret)
