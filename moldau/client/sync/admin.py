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

    @face_of(AsyncAdmin.abort_transaction)
    def abort_transaction(self) -> None: ...

    @face_of(AsyncAdmin.add_raft_voter)
    def add_raft_voter(self) -> None: ...

    @face_of(AsyncAdmin.alter_client_quotas)
    def alter_client_quotas(self) -> None: ...

    @face_of(AsyncAdmin.alter_configs)
    def alter_configs(self) -> None: ...

    @face_of(AsyncAdmin.alter_group_offsets)
    def alter_group_offsets(self) -> None: ...

    @face_of(AsyncAdmin.alter_partition_reassignments)
    def alter_partition_reassignments(self) -> None: ...

    @face_of(AsyncAdmin.alter_replica_log_dirs)
    def alter_replica_log_dirs(self) -> None: ...

    @face_of(AsyncAdmin.alter_user_scram_credentials)
    def alter_user_scram_credentials(self) -> None: ...

    @face_of(AsyncAdmin.create_acls)
    def create_acls(self) -> None: ...

    @face_of(AsyncAdmin.create_delegation_token)
    def create_delegation_token(self) -> None: ...

    @face_of(AsyncAdmin.create_partitions)
    def create_partitions(self) -> None: ...

    @face_of(AsyncAdmin.create_topics)
    def create_topics(self) -> None: ...

    @face_of(AsyncAdmin.delete_acls)
    def delete_acls(self) -> None: ...

    @face_of(AsyncAdmin.delete_group_offsets)
    def delete_group_offsets(self) -> None: ...

    @face_of(AsyncAdmin.delete_groups)
    def delete_groups(self) -> None: ...

    @face_of(AsyncAdmin.delete_records)
    def delete_records(self) -> None: ...

    @face_of(AsyncAdmin.delete_topics)
    def delete_topics(self) -> None: ...

    @face_of(AsyncAdmin.describe_acls)
    def describe_acls(self) -> None: ...

    @face_of(AsyncAdmin.describe_client_quotas)
    def describe_client_quotas(self) -> None: ...

    @face_of(AsyncAdmin.describe_cluster)
    def describe_cluster(self) -> None: ...

    @face_of(AsyncAdmin.describe_configs)
    def describe_configs(self) -> None: ...

    @face_of(AsyncAdmin.describe_delegation_tokens)
    def describe_delegation_tokens(self) -> None: ...

    @face_of(AsyncAdmin.describe_features)
    def describe_features(self) -> None: ...

    @face_of(AsyncAdmin.describe_groups)
    def describe_groups(self) -> None: ...

    @face_of(AsyncAdmin.describe_log_directories)
    def describe_log_directories(self) -> None: ...

    @face_of(AsyncAdmin.describe_metadata_quorum)
    def describe_metadata_quorum(self) -> None: ...

    @face_of(AsyncAdmin.describe_partition_producers)
    def describe_partition_producers(self) -> None: ...

    @face_of(AsyncAdmin.describe_producers)
    def describe_producers(self) -> None: ...

    @face_of(AsyncAdmin.describe_replica_logs)
    def describe_replica_logs(self) -> None: ...

    @face_of(AsyncAdmin.describe_topic_partitions)
    def describe_topic_partitions(self) -> None: ...

    @face_of(AsyncAdmin.describe_topics)
    def describe_topics(self) -> None: ...

    @face_of(AsyncAdmin.describe_transactions)
    def describe_transactions(self) -> None: ...

    @face_of(AsyncAdmin.describe_user_scram_credentials)
    def describe_user_scram_credentials(self) -> None: ...

    @face_of(AsyncAdmin.elect_leaders)
    def elect_leaders(self) -> None: ...

    @face_of(AsyncAdmin.end_transaction)
    def end_transaction(self) -> None: ...

    @face_of(AsyncAdmin.expire_delegation_token)
    def expire_delegation_token(self) -> None: ...

    @face_of(AsyncAdmin.fence_producers)
    def fence_producers(self) -> None: ...

    @face_of(AsyncAdmin.find_coordinators)
    def find_coordinators(self) -> None: ...

    @face_of(AsyncAdmin.list_config_resources)
    def list_config_resources(self) -> None: ...

    @face_of(AsyncAdmin.list_group_offsets)
    def list_group_offsets(self) -> None: ...

    @face_of(AsyncAdmin.list_groups)
    def list_groups(self) -> None: ...

    @face_of(AsyncAdmin.list_offsets)
    def list_offsets(self) -> None: ...

    @face_of(AsyncAdmin.list_partition_offsets)
    def list_partition_offsets(self) -> None: ...

    @face_of(AsyncAdmin.list_partition_reassignments)
    def list_partition_reassignments(self) -> None: ...

    @face_of(AsyncAdmin.list_replica_offsets)
    def list_replica_offsets(self) -> None: ...

    @face_of(AsyncAdmin.list_topics)
    def list_topics(self) -> None: ...

    @face_of(AsyncAdmin.list_transactions)
    def list_transactions(self) -> None: ...

    @face_of(AsyncAdmin.remove_group_members)
    def remove_group_members(self) -> None: ...

    @face_of(AsyncAdmin.remove_raft_voter)
    def remove_raft_voter(self) -> None: ...

    @face_of(AsyncAdmin.renew_delegation_token)
    def renew_delegation_token(self) -> None: ...

    @face_of(AsyncAdmin.transfer_quorum_leader)
    def transfer_quorum_leader(self) -> None: ...

    @face_of(AsyncAdmin.try_partition_reassignments)
    def try_partition_reassignments(self) -> None: ...

    @face_of(AsyncAdmin.unregister_broker)
    def unregister_broker(self) -> None: ...

    @face_of(AsyncAdmin.update_features)
    def update_features(self) -> None: ...
