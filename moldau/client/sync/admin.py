"""The blocking admin client. Written by tools/blocking_admin.py (`make fmt`): do not edit.

Each call has the parameters, types and documentation of the method of `moldau.client.Admin`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from moldau.client import Admin as AsyncAdmin
from moldau.client.config import AdminConfig, AdminSettings, ClientConfig
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

    abort_transaction = face_of(AsyncAdmin.abort_transaction)
    add_raft_voter = face_of(AsyncAdmin.add_raft_voter)
    alter_client_quotas = face_of(AsyncAdmin.alter_client_quotas)
    alter_configs = face_of(AsyncAdmin.alter_configs)
    alter_group_offsets = face_of(AsyncAdmin.alter_group_offsets)
    alter_partition_reassignments = face_of(AsyncAdmin.alter_partition_reassignments)
    alter_replica_log_dirs = face_of(AsyncAdmin.alter_replica_log_dirs)
    alter_user_scram_credentials = face_of(AsyncAdmin.alter_user_scram_credentials)
    create_acls = face_of(AsyncAdmin.create_acls)
    create_delegation_token = face_of(AsyncAdmin.create_delegation_token)
    create_partitions = face_of(AsyncAdmin.create_partitions)
    create_topics = face_of(AsyncAdmin.create_topics)
    delete_acls = face_of(AsyncAdmin.delete_acls)
    delete_group_offsets = face_of(AsyncAdmin.delete_group_offsets)
    delete_groups = face_of(AsyncAdmin.delete_groups)
    delete_records = face_of(AsyncAdmin.delete_records)
    delete_topics = face_of(AsyncAdmin.delete_topics)
    describe_acls = face_of(AsyncAdmin.describe_acls)
    describe_client_quotas = face_of(AsyncAdmin.describe_client_quotas)
    describe_cluster = face_of(AsyncAdmin.describe_cluster)
    describe_configs = face_of(AsyncAdmin.describe_configs)
    describe_delegation_tokens = face_of(AsyncAdmin.describe_delegation_tokens)
    describe_features = face_of(AsyncAdmin.describe_features)
    describe_groups = face_of(AsyncAdmin.describe_groups)
    describe_log_directories = face_of(AsyncAdmin.describe_log_directories)
    describe_metadata_quorum = face_of(AsyncAdmin.describe_metadata_quorum)
    describe_partition_producers = face_of(AsyncAdmin.describe_partition_producers)
    describe_producers = face_of(AsyncAdmin.describe_producers)
    describe_replica_logs = face_of(AsyncAdmin.describe_replica_logs)
    describe_topic_partitions = face_of(AsyncAdmin.describe_topic_partitions)
    describe_topics = face_of(AsyncAdmin.describe_topics)
    describe_transactions = face_of(AsyncAdmin.describe_transactions)
    describe_user_scram_credentials = face_of(AsyncAdmin.describe_user_scram_credentials)
    elect_leaders = face_of(AsyncAdmin.elect_leaders)
    end_transaction = face_of(AsyncAdmin.end_transaction)
    expire_delegation_token = face_of(AsyncAdmin.expire_delegation_token)
    fence_producers = face_of(AsyncAdmin.fence_producers)
    find_coordinators = face_of(AsyncAdmin.find_coordinators)
    list_config_resources = face_of(AsyncAdmin.list_config_resources)
    list_group_offsets = face_of(AsyncAdmin.list_group_offsets)
    list_groups = face_of(AsyncAdmin.list_groups)
    list_offsets = face_of(AsyncAdmin.list_offsets)
    list_partition_offsets = face_of(AsyncAdmin.list_partition_offsets)
    list_partition_reassignments = face_of(AsyncAdmin.list_partition_reassignments)
    list_replica_offsets = face_of(AsyncAdmin.list_replica_offsets)
    list_topics = face_of(AsyncAdmin.list_topics)
    list_transactions = face_of(AsyncAdmin.list_transactions)
    remove_group_members = face_of(AsyncAdmin.remove_group_members)
    remove_raft_voter = face_of(AsyncAdmin.remove_raft_voter)
    renew_delegation_token = face_of(AsyncAdmin.renew_delegation_token)
    transfer_quorum_leader = face_of(AsyncAdmin.transfer_quorum_leader)
    try_partition_reassignments = face_of(AsyncAdmin.try_partition_reassignments)
    unregister_broker = face_of(AsyncAdmin.unregister_broker)
    update_features = face_of(AsyncAdmin.update_features)
