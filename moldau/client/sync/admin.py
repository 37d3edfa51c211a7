"""The blocking admin client. Written by tools/blocking_admin.py (`make fmt`): do not edit.

Each call has the parameters, types and documentation of the method of `moldau.client.Admin`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Unpack

from moldau.client import Admin as AsyncAdmin
from moldau.client.config.client import AdminConfig, ClientConfig
from moldau.client.config.keywords import AdminSettings
from moldau.client.sync.client import BlockingClient, face_of


class Admin(BlockingClient[AsyncAdmin]):
    """A blocking admin client; use as `with Admin("localhost:9092") as admin`.

    Arguments and errors are those of `moldau.client.Admin`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = (),
        *,
        config: ClientConfig | Mapping[str, object] | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        resolved = AdminConfig.resolve(bootstrap_servers, config, settings)
        super().__init__(lambda: AsyncAdmin(config=resolved))

    abort_transaction: Final = face_of(AsyncAdmin.abort_transaction)
    add_raft_voter: Final = face_of(AsyncAdmin.add_raft_voter)
    alter_client_quotas: Final = face_of(AsyncAdmin.alter_client_quotas)
    alter_configs: Final = face_of(AsyncAdmin.alter_configs)
    alter_group_offsets: Final = face_of(AsyncAdmin.alter_group_offsets)
    alter_partition_reassignments: Final = face_of(AsyncAdmin.alter_partition_reassignments)
    alter_replica_log_dirs: Final = face_of(AsyncAdmin.alter_replica_log_dirs)
    alter_user_scram_credentials: Final = face_of(AsyncAdmin.alter_user_scram_credentials)
    create_acls: Final = face_of(AsyncAdmin.create_acls)
    create_delegation_token: Final = face_of(AsyncAdmin.create_delegation_token)
    create_partitions: Final = face_of(AsyncAdmin.create_partitions)
    create_topics: Final = face_of(AsyncAdmin.create_topics)
    delete_acls: Final = face_of(AsyncAdmin.delete_acls)
    delete_group_offsets: Final = face_of(AsyncAdmin.delete_group_offsets)
    delete_groups: Final = face_of(AsyncAdmin.delete_groups)
    delete_records: Final = face_of(AsyncAdmin.delete_records)
    delete_topics: Final = face_of(AsyncAdmin.delete_topics)
    describe_acls: Final = face_of(AsyncAdmin.describe_acls)
    describe_certificates: Final = face_of(AsyncAdmin.describe_certificates)
    describe_client_quotas: Final = face_of(AsyncAdmin.describe_client_quotas)
    describe_cluster: Final = face_of(AsyncAdmin.describe_cluster)
    describe_configs: Final = face_of(AsyncAdmin.describe_configs)
    describe_delegation_tokens: Final = face_of(AsyncAdmin.describe_delegation_tokens)
    describe_features: Final = face_of(AsyncAdmin.describe_features)
    describe_groups: Final = face_of(AsyncAdmin.describe_groups)
    describe_log_directories: Final = face_of(AsyncAdmin.describe_log_directories)
    describe_metadata_quorum: Final = face_of(AsyncAdmin.describe_metadata_quorum)
    describe_partition_producers: Final = face_of(AsyncAdmin.describe_partition_producers)
    describe_producers: Final = face_of(AsyncAdmin.describe_producers)
    describe_replica_logs: Final = face_of(AsyncAdmin.describe_replica_logs)
    describe_topic_partitions: Final = face_of(AsyncAdmin.describe_topic_partitions)
    describe_topics: Final = face_of(AsyncAdmin.describe_topics)
    describe_transactions: Final = face_of(AsyncAdmin.describe_transactions)
    describe_user_scram_credentials: Final = face_of(AsyncAdmin.describe_user_scram_credentials)
    elect_leaders: Final = face_of(AsyncAdmin.elect_leaders)
    end_transaction: Final = face_of(AsyncAdmin.end_transaction)
    expire_delegation_token: Final = face_of(AsyncAdmin.expire_delegation_token)
    fence_producers: Final = face_of(AsyncAdmin.fence_producers)
    find_coordinators: Final = face_of(AsyncAdmin.find_coordinators)
    list_config_resources: Final = face_of(AsyncAdmin.list_config_resources)
    list_group_offsets: Final = face_of(AsyncAdmin.list_group_offsets)
    list_groups: Final = face_of(AsyncAdmin.list_groups)
    list_offsets: Final = face_of(AsyncAdmin.list_offsets)
    list_partition_offsets: Final = face_of(AsyncAdmin.list_partition_offsets)
    list_partition_reassignments: Final = face_of(AsyncAdmin.list_partition_reassignments)
    list_replica_offsets: Final = face_of(AsyncAdmin.list_replica_offsets)
    list_topics: Final = face_of(AsyncAdmin.list_topics)
    list_transactions: Final = face_of(AsyncAdmin.list_transactions)
    remove_group_members: Final = face_of(AsyncAdmin.remove_group_members)
    remove_raft_voter: Final = face_of(AsyncAdmin.remove_raft_voter)
    renew_delegation_token: Final = face_of(AsyncAdmin.renew_delegation_token)
    transfer_quorum_leader: Final = face_of(AsyncAdmin.transfer_quorum_leader)
    try_partition_reassignments: Final = face_of(AsyncAdmin.try_partition_reassignments)
    unregister_broker: Final = face_of(AsyncAdmin.unregister_broker)
    update_features: Final = face_of(AsyncAdmin.update_features)
