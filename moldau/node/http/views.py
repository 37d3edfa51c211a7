"""The read-only JSON that the HTTP listener serves; health and readiness are in `server`.

Owns the shape of each document. Must not do I/O or touch a socket: it runs on the data loop,
between two requests, and is therefore bounded in what it looks at. Invariant: no sensitive value is
ever shown.
"""

from __future__ import annotations

import datetime
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.broker.lifecycle.cluster_view import alive_brokers, is_internal_topic, partition_state
from moldau.broker.replica.partition import Partition
from moldau.metadata.image import ConfigResourceType, MetadataImage, TopicImage
from moldau.node.expirations import Expirations
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition, uuid_to_base64
from moldau.storage.log_manager import describe_log_dirs

MAX_TOPICS_PER_PAGE: Final = 1_000
"""Topics looked at for a page; what the client may not know of is left out."""
MAX_PARTITIONS_PER_PAGE: Final = 2_000

Document = dict[str, object]


def cluster(services: BrokerServices) -> Document:
    """Cluster id, active controller (-1 while none is known), brokers, finalized features and how
    far this broker's metadata is.
    """
    image = services.metadata.image
    return {
        "cluster_id": services.cluster_id,
        "broker_id": services.broker_id,
        "controller_id": services.controller.active_controller_id,
        "metadata_offset": image.provenance.last_contained_offset,
        "features": dict(sorted(image.features.finalized_levels.items())),
        "topic_count": len(image.topics.topics_by_id),
        "brokers": [
            {
                "broker_id": broker_id,
                "broker_epoch": registration.broker_epoch,
                "rack": registration.rack,
                "fenced": registration.fenced,
                "listeners": {
                    name: f"{endpoint.host}:{endpoint.port}"
                    for name, endpoint in sorted(registration.listeners.items())
                },
            }
            for broker_id, registration in sorted(image.cluster.brokers.items())
        ],
    }


def certificates(expirations: Expirations) -> Document:
    """What expires first in each key and trust store of the node's listeners, and of what it logs
    in to other nodes with. In any thread.
    """

    def times(expires_at_ms: float) -> Document:
        at = datetime.datetime.fromtimestamp(expires_at_ms / 1000, datetime.UTC)
        left_s = int(expirations.seconds_left(expires_at_ms))
        return {"expires_at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "seconds_left": left_s}

    return {
        "warning_days": expirations.warning_days,
        "certificates": [
            {
                "listener": each.listener,
                "store": each.store,
                "location": each.location,
                "subject": each.subject,
                **times(each.expires_at_ms),
                "certificate_count": each.certificate_count,
            }
            for each in expirations.certificates
        ],
        "logins": [
            {
                "listener": watched.listener,
                "mechanism": watched.login.mechanism,
                "location": login.source,
                **times(login.expires_at_ms),
            }
            for watched, login in expirations.logins
        ],
    }


def topic_names(services: BrokerServices, after: str = "") -> tuple[list[str], str | None]:
    """The topics of one page in name order, and the name to go on from if there are more."""
    names = sorted(n for n in services.metadata.image.topics.topics_by_name if n > after)
    page = names[:MAX_TOPICS_PER_PAGE]
    return page, page[-1] if len(names) > len(page) else None


def topics(services: BrokerServices, names: list[str], next_after: str | None) -> Document:
    """Topics by their names, those that exist; `next_after` is the name to go on from."""
    by_name = services.metadata.image.topics.topics_by_name
    return {
        "topics": [_topic_summary(by_name[name]) for name in names if name in by_name],
        "next_after": next_after,
    }


def metadata(image: MetadataImage) -> Document:
    """Up to where the metadata log has been applied, and the digest of what came out of it: equal
    on every broker that has applied as much. In any thread.
    """
    return {
        "last_applied_offset": image.provenance.last_contained_offset,
        "last_applied_epoch": image.provenance.last_contained_epoch,
        "digest": image.digest(),
    }


def topic(
    services: BrokerServices,
    topic_name: str,
    first_partition: int = 0,
    *,
    shows_configs: bool = True,
) -> Document | None:
    """One topic with its partitions, or None when there is no such topic.

    Args:
        shows_configs: whether its configuration is shown, too; else that is None.
    """
    image = services.metadata.image
    found = image.topics.topics_by_name.get(topic_name)
    if found is None:
        return None
    alive = alive_brokers(image)
    listener_name = services.node_config.inter_broker_listener_name
    indexes = [index for index in sorted(found.partitions) if index >= first_partition]
    page = indexes[:MAX_PARTITIONS_PER_PAGE]
    partitions = []
    for index in page:
        registration = found.partitions[index]
        error, leader_id, offline_replicas = partition_state(registration, alive, listener_name)
        entry: Document = {
            "partition": index,
            "leader": leader_id,
            "leader_epoch": registration.leader_epoch,
            "replicas": list(registration.replicas),
            "isr": list(registration.isr),
            "eligible_leader_replicas": list(registration.elr),
            "offline_replicas": offline_replicas,
            "error": None if error == ErrorCode.NONE else error.name,
        }
        log = services.log_manager.get(TopicPartition(topic_name, index))
        if log is not None:
            entry.update(
                log_start_offset=log.log_start_offset,
                high_watermark=log.high_watermark,
                log_end_offset=log.log_end_offset,
                size_bytes=log.size_bytes,
                offline=log.offline,
            )
        entry.update(_leaders_view(services.replica_manager.get(topic_name, index)))
        partitions.append(entry)
    configs = image.configs.get(ConfigResourceType.TOPIC, topic_name)
    return {
        **_topic_summary(found),
        "configs": dict(sorted(configs.items())) if shows_configs else None,
        "partitions": partitions,
        "next_partition": indexes[len(page)] if len(indexes) > len(page) else None,
    }


def _leaders_view(partition: Partition | None) -> Document:
    """What the leader of a partition knows of its replicas; empty on every other broker."""
    if partition is None or not partition.is_leader or partition.is_offline:
        return {}
    return {
        "low_watermark": partition.low_watermark,
        "under_min_isr": partition.is_under_min_isr,
        "reassigning": partition.is_reassigning,
        "replica_states": [
            {
                "broker_id": figures.replica_id,
                "log_end_offset": figures.log_end_offset,
                "lag": figures.lag,
                "in_sync": figures.is_in_sync,
                "caught_up_age_ms": figures.caught_up_age_ms,
            }
            for figures in partition.replica_figures()
        ],
    }


def log_directories(services: BrokerServices) -> Document:
    return {
        "log_directories": [
            {
                "directory": described.directory,
                "error": None if described.error == ErrorCode.NONE else described.error.name,
                "total_bytes": described.total_bytes,
                "usable_bytes": described.usable_bytes,
                "partitions": [
                    {
                        "topic": log.topic_partition.topic,
                        "partition": log.topic_partition.partition,
                        "size_bytes": log.size_bytes,
                    }
                    for log in described.logs
                ],
            }
            for described in describe_log_dirs(services.log_manager)
        ]
    }


def _topic_summary(found: TopicImage) -> Document:
    return {
        "name": found.name,
        "topic_id": uuid_to_base64(found.topic_id),
        "internal": is_internal_topic(found.name),
        "partition_count": len(found.partitions),
    }
