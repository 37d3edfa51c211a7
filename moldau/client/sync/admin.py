"""The blocking admin client: every call of `moldau.client.Admin`, in the calling thread.

Owns nothing but the list of calls. Must not change any of them: parameters, types and documentation
come from the asyncio client. Invariant: both have the same calls (a test compares them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from moldau.client.admin.admin import Admin as AsyncAdmin
from moldau.client.config import AdminConfig, AdminSettings, ClientConfig
from moldau.client.sync.calls import face_of
from moldau.client.sync.client import BlockingClient


class Admin(BlockingClient):
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

    @face_of(AsyncAdmin.create_topics)
    def create_topics(self) -> None:
        """As `moldau.client.Admin.create_topics`."""

    @face_of(AsyncAdmin.delete_topics)
    def delete_topics(self) -> None:
        """As `moldau.client.Admin.delete_topics`."""

    @face_of(AsyncAdmin.create_partitions)
    def create_partitions(self) -> None:
        """As `moldau.client.Admin.create_partitions`."""

    @face_of(AsyncAdmin.list_topics)
    def list_topics(self) -> None:
        """As `moldau.client.Admin.list_topics`."""

    @face_of(AsyncAdmin.describe_topics)
    def describe_topics(self) -> None:
        """As `moldau.client.Admin.describe_topics`."""

    @face_of(AsyncAdmin.describe_topic_partitions)
    def describe_topic_partitions(self) -> None:
        """As `moldau.client.Admin.describe_topic_partitions`."""

    @face_of(AsyncAdmin.list_offsets)
    def list_offsets(self) -> None:
        """As `moldau.client.Admin.list_offsets`."""

    @face_of(AsyncAdmin.delete_records)
    def delete_records(self) -> None:
        """As `moldau.client.Admin.delete_records`."""

    @face_of(AsyncAdmin.describe_producers)
    def describe_producers(self) -> None:
        """As `moldau.client.Admin.describe_producers`."""

    @face_of(AsyncAdmin.elect_leaders)
    def elect_leaders(self) -> None:
        """As `moldau.client.Admin.elect_leaders`."""

    @face_of(AsyncAdmin.alter_partition_reassignments)
    def alter_partition_reassignments(self) -> None:
        """As `moldau.client.Admin.alter_partition_reassignments`."""

    @face_of(AsyncAdmin.try_partition_reassignments)
    def try_partition_reassignments(self) -> None:
        """As `moldau.client.Admin.try_partition_reassignments`."""

    @face_of(AsyncAdmin.list_partition_reassignments)
    def list_partition_reassignments(self) -> None:
        """As `moldau.client.Admin.list_partition_reassignments`."""

    @face_of(AsyncAdmin.describe_replica_logs)
    def describe_replica_logs(self) -> None:
        """As `moldau.client.Admin.describe_replica_logs`."""

    @face_of(AsyncAdmin.list_replica_offsets)
    def list_replica_offsets(self) -> None:
        """As `moldau.client.Admin.list_replica_offsets`."""

    @face_of(AsyncAdmin.alter_replica_log_dirs)
    def alter_replica_log_dirs(self) -> None:
        """As `moldau.client.Admin.alter_replica_log_dirs`."""

    @face_of(AsyncAdmin.describe_cluster)
    def describe_cluster(self) -> None:
        """As `moldau.client.Admin.describe_cluster`."""

    @face_of(AsyncAdmin.describe_features)
    def describe_features(self) -> None:
        """As `moldau.client.Admin.describe_features`."""

    @face_of(AsyncAdmin.describe_configs)
    def describe_configs(self) -> None:
        """As `moldau.client.Admin.describe_configs`."""

    @face_of(AsyncAdmin.alter_configs)
    def alter_configs(self) -> None:
        """As `moldau.client.Admin.alter_configs`."""

    @face_of(AsyncAdmin.list_config_resources)
    def list_config_resources(self) -> None:
        """As `moldau.client.Admin.list_config_resources`."""

    @face_of(AsyncAdmin.describe_log_directories)
    def describe_log_directories(self) -> None:
        """As `moldau.client.Admin.describe_log_directories`."""

    @face_of(AsyncAdmin.describe_metadata_quorum)
    def describe_metadata_quorum(self) -> None:
        """As `moldau.client.Admin.describe_metadata_quorum`."""

    @face_of(AsyncAdmin.add_raft_voter)
    def add_raft_voter(self) -> None:
        """As `moldau.client.Admin.add_raft_voter`."""

    @face_of(AsyncAdmin.remove_raft_voter)
    def remove_raft_voter(self) -> None:
        """As `moldau.client.Admin.remove_raft_voter`."""

    @face_of(AsyncAdmin.transfer_quorum_leader)
    def transfer_quorum_leader(self) -> None:
        """As `moldau.client.Admin.transfer_quorum_leader`."""

    @face_of(AsyncAdmin.update_features)
    def update_features(self) -> None:
        """As `moldau.client.Admin.update_features`."""

    @face_of(AsyncAdmin.unregister_broker)
    def unregister_broker(self) -> None:
        """As `moldau.client.Admin.unregister_broker`."""

    @face_of(AsyncAdmin.find_coordinators)
    def find_coordinators(self) -> None:
        """As `moldau.client.Admin.find_coordinators`."""

    @face_of(AsyncAdmin.list_groups)
    def list_groups(self) -> None:
        """As `moldau.client.Admin.list_groups`."""

    @face_of(AsyncAdmin.describe_groups)
    def describe_groups(self) -> None:
        """As `moldau.client.Admin.describe_groups`."""

    @face_of(AsyncAdmin.delete_groups)
    def delete_groups(self) -> None:
        """As `moldau.client.Admin.delete_groups`."""

    @face_of(AsyncAdmin.list_group_offsets)
    def list_group_offsets(self) -> None:
        """As `moldau.client.Admin.list_group_offsets`."""

    @face_of(AsyncAdmin.alter_group_offsets)
    def alter_group_offsets(self) -> None:
        """As `moldau.client.Admin.alter_group_offsets`."""

    @face_of(AsyncAdmin.delete_group_offsets)
    def delete_group_offsets(self) -> None:
        """As `moldau.client.Admin.delete_group_offsets`."""

    @face_of(AsyncAdmin.list_partition_offsets)
    def list_partition_offsets(self) -> None:
        """As `moldau.client.Admin.list_partition_offsets`."""

    @face_of(AsyncAdmin.describe_partition_producers)
    def describe_partition_producers(self) -> None:
        """As `moldau.client.Admin.describe_partition_producers`."""

    @face_of(AsyncAdmin.list_transactions)
    def list_transactions(self) -> None:
        """As `moldau.client.Admin.list_transactions`."""

    @face_of(AsyncAdmin.describe_transactions)
    def describe_transactions(self) -> None:
        """As `moldau.client.Admin.describe_transactions`."""

    @face_of(AsyncAdmin.abort_transaction)
    def abort_transaction(self) -> None:
        """As `moldau.client.Admin.abort_transaction`."""

    @face_of(AsyncAdmin.fence_producers)
    def fence_producers(self) -> None:
        """As `moldau.client.Admin.fence_producers`."""

    @face_of(AsyncAdmin.end_transaction)
    def end_transaction(self) -> None:
        """As `moldau.client.Admin.end_transaction`."""

    @face_of(AsyncAdmin.remove_group_members)
    def remove_group_members(self) -> None:
        """As `moldau.client.Admin.remove_group_members`."""

    @face_of(AsyncAdmin.describe_acls)
    def describe_acls(self) -> None:
        """As `moldau.client.Admin.describe_acls`."""

    @face_of(AsyncAdmin.create_acls)
    def create_acls(self) -> None:
        """As `moldau.client.Admin.create_acls`."""

    @face_of(AsyncAdmin.delete_acls)
    def delete_acls(self) -> None:
        """As `moldau.client.Admin.delete_acls`."""

    @face_of(AsyncAdmin.describe_client_quotas)
    def describe_client_quotas(self) -> None:
        """As `moldau.client.Admin.describe_client_quotas`."""

    @face_of(AsyncAdmin.alter_client_quotas)
    def alter_client_quotas(self) -> None:
        """As `moldau.client.Admin.alter_client_quotas`."""

    @face_of(AsyncAdmin.describe_user_scram_credentials)
    def describe_user_scram_credentials(self) -> None:
        """As `moldau.client.Admin.describe_user_scram_credentials`."""

    @face_of(AsyncAdmin.alter_user_scram_credentials)
    def alter_user_scram_credentials(self) -> None:
        """As `moldau.client.Admin.alter_user_scram_credentials`."""

    @face_of(AsyncAdmin.create_delegation_token)
    def create_delegation_token(self) -> None:
        """As `moldau.client.Admin.create_delegation_token`."""

    @face_of(AsyncAdmin.renew_delegation_token)
    def renew_delegation_token(self) -> None:
        """As `moldau.client.Admin.renew_delegation_token`."""

    @face_of(AsyncAdmin.expire_delegation_token)
    def expire_delegation_token(self) -> None:
        """As `moldau.client.Admin.expire_delegation_token`."""

    @face_of(AsyncAdmin.describe_delegation_tokens)
    def describe_delegation_tokens(self) -> None:
        """As `moldau.client.Admin.describe_delegation_tokens`."""
