"""The keys and values that coordinators write, one module each, imported when first asked for.

`frame` puts them into a log record's key and value and gets them out again.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.protocol.coordinator_records.consumer_group_current_member_assignment import (
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupCurrentMemberAssignmentValue,
    )
    from moldau.protocol.coordinator_records.consumer_group_member_metadata import (
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupMemberMetadataValue,
    )
    from moldau.protocol.coordinator_records.consumer_group_metadata import (
        ConsumerGroupMetadataKey,
        ConsumerGroupMetadataValue,
    )
    from moldau.protocol.coordinator_records.consumer_group_partition_metadata import (
        ConsumerGroupPartitionMetadataKey,
        ConsumerGroupPartitionMetadataValue,
    )
    from moldau.protocol.coordinator_records.consumer_group_regular_expression import (
        ConsumerGroupRegularExpressionKey,
        ConsumerGroupRegularExpressionValue,
    )
    from moldau.protocol.coordinator_records.consumer_group_target_assignment_member import (
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMemberValue,
    )
    from moldau.protocol.coordinator_records.consumer_group_target_assignment_metadata import (
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
    )
    from moldau.protocol.coordinator_records.frame import (
        CONSUMER_OFFSETS,
        INTERNAL_TOPICS,
        TRANSACTION_STATE,
        CoordinatorLog,
    )
    from moldau.protocol.coordinator_records.group_metadata import (
        GroupMetadataKey,
        GroupMetadataValue,
    )
    from moldau.protocol.coordinator_records.legacy_offset_commit import (
        LegacyOffsetCommitKey,
        LegacyOffsetCommitValue,
    )
    from moldau.protocol.coordinator_records.offset_commit import OffsetCommitKey, OffsetCommitValue
    from moldau.protocol.coordinator_records.share_group_current_member_assignment import (
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupCurrentMemberAssignmentValue,
    )
    from moldau.protocol.coordinator_records.share_group_member_metadata import (
        ShareGroupMemberMetadataKey,
        ShareGroupMemberMetadataValue,
    )
    from moldau.protocol.coordinator_records.share_group_metadata import (
        ShareGroupMetadataKey,
        ShareGroupMetadataValue,
    )
    from moldau.protocol.coordinator_records.share_group_state_partition_metadata import (
        ShareGroupStatePartitionMetadataKey,
        ShareGroupStatePartitionMetadataValue,
    )
    from moldau.protocol.coordinator_records.share_group_target_assignment_member import (
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupTargetAssignmentMemberValue,
    )
    from moldau.protocol.coordinator_records.share_group_target_assignment_metadata import (
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupTargetAssignmentMetadataValue,
    )
    from moldau.protocol.coordinator_records.streams_group_current_member_assignment import (
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupCurrentMemberAssignmentValue,
    )
    from moldau.protocol.coordinator_records.streams_group_member_metadata import (
        StreamsGroupMemberMetadataKey,
        StreamsGroupMemberMetadataValue,
    )
    from moldau.protocol.coordinator_records.streams_group_metadata import (
        StreamsGroupMetadataKey,
        StreamsGroupMetadataValue,
    )
    from moldau.protocol.coordinator_records.streams_group_target_assignment_member import (
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupTargetAssignmentMemberValue,
    )
    from moldau.protocol.coordinator_records.streams_group_target_assignment_metadata import (
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupTargetAssignmentMetadataValue,
    )
    from moldau.protocol.coordinator_records.streams_group_topology import (
        StreamsGroupTopologyKey,
        StreamsGroupTopologyValue,
    )
    from moldau.protocol.coordinator_records.transaction_log import (
        TransactionLogKey,
        TransactionLogValue,
    )

_MODULES = {
    "LegacyOffsetCommitKey": "legacy_offset_commit",
    "LegacyOffsetCommitValue": "legacy_offset_commit",
    "OffsetCommitKey": "offset_commit",
    "OffsetCommitValue": "offset_commit",
    "GroupMetadataKey": "group_metadata",
    "GroupMetadataValue": "group_metadata",
    "ConsumerGroupMetadataKey": "consumer_group_metadata",
    "ConsumerGroupMetadataValue": "consumer_group_metadata",
    "ConsumerGroupPartitionMetadataKey": "consumer_group_partition_metadata",
    "ConsumerGroupPartitionMetadataValue": "consumer_group_partition_metadata",
    "ConsumerGroupMemberMetadataKey": "consumer_group_member_metadata",
    "ConsumerGroupMemberMetadataValue": "consumer_group_member_metadata",
    "ConsumerGroupTargetAssignmentMetadataKey": "consumer_group_target_assignment_metadata",
    "ConsumerGroupTargetAssignmentMetadataValue": "consumer_group_target_assignment_metadata",
    "ConsumerGroupTargetAssignmentMemberKey": "consumer_group_target_assignment_member",
    "ConsumerGroupTargetAssignmentMemberValue": "consumer_group_target_assignment_member",
    "ConsumerGroupCurrentMemberAssignmentKey": "consumer_group_current_member_assignment",
    "ConsumerGroupCurrentMemberAssignmentValue": "consumer_group_current_member_assignment",
    "ShareGroupMemberMetadataKey": "share_group_member_metadata",
    "ShareGroupMemberMetadataValue": "share_group_member_metadata",
    "ShareGroupMetadataKey": "share_group_metadata",
    "ShareGroupMetadataValue": "share_group_metadata",
    "ShareGroupTargetAssignmentMetadataKey": "share_group_target_assignment_metadata",
    "ShareGroupTargetAssignmentMetadataValue": "share_group_target_assignment_metadata",
    "ShareGroupTargetAssignmentMemberKey": "share_group_target_assignment_member",
    "ShareGroupTargetAssignmentMemberValue": "share_group_target_assignment_member",
    "ShareGroupCurrentMemberAssignmentKey": "share_group_current_member_assignment",
    "ShareGroupCurrentMemberAssignmentValue": "share_group_current_member_assignment",
    "ShareGroupStatePartitionMetadataKey": "share_group_state_partition_metadata",
    "ShareGroupStatePartitionMetadataValue": "share_group_state_partition_metadata",
    "ConsumerGroupRegularExpressionKey": "consumer_group_regular_expression",
    "ConsumerGroupRegularExpressionValue": "consumer_group_regular_expression",
    "StreamsGroupMetadataKey": "streams_group_metadata",
    "StreamsGroupMetadataValue": "streams_group_metadata",
    "StreamsGroupMemberMetadataKey": "streams_group_member_metadata",
    "StreamsGroupMemberMetadataValue": "streams_group_member_metadata",
    "StreamsGroupTargetAssignmentMetadataKey": "streams_group_target_assignment_metadata",
    "StreamsGroupTargetAssignmentMetadataValue": "streams_group_target_assignment_metadata",
    "StreamsGroupTargetAssignmentMemberKey": "streams_group_target_assignment_member",
    "StreamsGroupTargetAssignmentMemberValue": "streams_group_target_assignment_member",
    "StreamsGroupCurrentMemberAssignmentKey": "streams_group_current_member_assignment",
    "StreamsGroupCurrentMemberAssignmentValue": "streams_group_current_member_assignment",
    "StreamsGroupTopologyKey": "streams_group_topology",
    "StreamsGroupTopologyValue": "streams_group_topology",
    "TransactionLogKey": "transaction_log",
    "TransactionLogValue": "transaction_log",
    "CoordinatorLog": "frame",
    "CONSUMER_OFFSETS": "frame",
    "INTERNAL_TOPICS": "frame",
    "TRANSACTION_STATE": "frame",
}

__all__ = [
    "CONSUMER_OFFSETS",
    "INTERNAL_TOPICS",
    "TRANSACTION_STATE",
    "ConsumerGroupCurrentMemberAssignmentKey",
    "ConsumerGroupCurrentMemberAssignmentValue",
    "ConsumerGroupMemberMetadataKey",
    "ConsumerGroupMemberMetadataValue",
    "ConsumerGroupMetadataKey",
    "ConsumerGroupMetadataValue",
    "ConsumerGroupPartitionMetadataKey",
    "ConsumerGroupPartitionMetadataValue",
    "ConsumerGroupRegularExpressionKey",
    "ConsumerGroupRegularExpressionValue",
    "ConsumerGroupTargetAssignmentMemberKey",
    "ConsumerGroupTargetAssignmentMemberValue",
    "ConsumerGroupTargetAssignmentMetadataKey",
    "ConsumerGroupTargetAssignmentMetadataValue",
    "CoordinatorLog",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "LegacyOffsetCommitKey",
    "LegacyOffsetCommitValue",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "ShareGroupCurrentMemberAssignmentKey",
    "ShareGroupCurrentMemberAssignmentValue",
    "ShareGroupMemberMetadataKey",
    "ShareGroupMemberMetadataValue",
    "ShareGroupMetadataKey",
    "ShareGroupMetadataValue",
    "ShareGroupStatePartitionMetadataKey",
    "ShareGroupStatePartitionMetadataValue",
    "ShareGroupTargetAssignmentMemberKey",
    "ShareGroupTargetAssignmentMemberValue",
    "ShareGroupTargetAssignmentMetadataKey",
    "ShareGroupTargetAssignmentMetadataValue",
    "StreamsGroupCurrentMemberAssignmentKey",
    "StreamsGroupCurrentMemberAssignmentValue",
    "StreamsGroupMemberMetadataKey",
    "StreamsGroupMemberMetadataValue",
    "StreamsGroupMetadataKey",
    "StreamsGroupMetadataValue",
    "StreamsGroupTargetAssignmentMemberKey",
    "StreamsGroupTargetAssignmentMemberValue",
    "StreamsGroupTargetAssignmentMetadataKey",
    "StreamsGroupTargetAssignmentMetadataValue",
    "StreamsGroupTopologyKey",
    "StreamsGroupTopologyValue",
    "TransactionLogKey",
    "TransactionLogValue",
]


def __getattr__(name: str) -> Any:
    module_name = _MODULES.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module_name}"), name)
    globals()[name] = found
    return found
