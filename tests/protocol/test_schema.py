"""What a declaration means: defaults, absent fields, shared defaults, misuse."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest

from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p01_fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p56_alter_partition import AlterPartitionRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from moldau.protocol.schema import Message
from moldau.protocol.structs import Struct, Versions
from moldau.protocol.types import ZERO_UUID
from tests.protocol.instances import all_classes


def test_a_message_knows_its_versions() -> None:
    assert (FetchRequest.API_KEY, FetchRequest.FLEXIBLE_SINCE) == (1, 12)
    assert (FetchRequest.MIN_VERSION, FetchRequest.MAX_VERSION) == (4, 18)
    assert FetchRequest.supports(4)
    assert not FetchRequest.supports(3)
    assert not FetchRequest.supports(19)
    assert (InitProducerIdRequest.LATEST_STABLE_VERSION, InitProducerIdRequest.MAX_VERSION) == (
        5,
        6,
    )


def test_defaults_are_those_of_the_type_or_the_declaration() -> None:
    request = FetchRequest()
    assert (request.cluster_id, request.max_bytes, request.topics, request.rack_id) == (
        None,
        2**31 - 1,
        [],
        "",
    )
    assert request.topics is not FetchRequest().topics
    assert PartitionData().records is None
    assert FetchableTopicResponse().topic_id == ZERO_UUID


def test_messages_are_compared_and_shown_by_value() -> None:
    assert LeaderIdAndEpoch(leader_id=3) == LeaderIdAndEpoch(leader_id=3)
    assert LeaderIdAndEpoch(leader_id=3) != LeaderIdAndEpoch(leader_id=4)
    assert LeaderIdAndEpoch() != ReplicaState()
    assert repr(LeaderIdAndEpoch(leader_id=3)) == "LeaderIdAndEpoch(leader_id=3, leader_epoch=-1)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(LeaderIdAndEpoch())


def test_messages_have_slots_and_take_keywords_only() -> None:
    for message_class in all_classes():
        assert not hasattr(message_class(), "__dict__"), message_class
    constructor: Any = LeaderIdAndEpoch
    with pytest.raises(TypeError):
        constructor(1, 2)
    with pytest.raises(TypeError):
        constructor(leader=1)
    with pytest.raises(AttributeError):
        constructor().leader = 1


def test_a_struct_of_defaults_is_shared_and_refuses_changes() -> None:
    partition = PartitionData()
    assert partition.current_leader is PartitionData().current_leader
    assert partition.current_leader == LeaderIdAndEpoch()
    assert isinstance(partition.current_leader, LeaderIdAndEpoch)
    with pytest.raises(AttributeError, match="assign a new LeaderIdAndEpoch"):
        partition.current_leader.leader_id = 7
    with pytest.raises(AttributeError, match="assign a new LeaderIdAndEpoch"):
        del partition.current_leader.leader_id
    assert PartitionData().current_leader.leader_id == -1
    partition.current_leader = LeaderIdAndEpoch(leader_id=7)
    partition.current_leader.leader_id = 8
    assert PartitionData().current_leader.leader_id == -1
    copied = copy.deepcopy(PartitionData())
    assert copied == PartitionData()
    copied.current_leader = LeaderIdAndEpoch(leader_id=7)
    assert copied != PartitionData()


def test_a_struct_of_defaults_has_no_list_that_messages_would_share() -> None:
    for message_class in all_classes():
        for field in message_class.spec().fields:
            if isinstance(field.default, Struct):
                assert not any(inner.fresh_default for inner in type(field.default).spec().fields)
    first, second = ConsumerGroupHeartbeatResponse(), ConsumerGroupHeartbeatResponse()
    assert first.assignment is None
    assert second == first


def test_a_value_that_the_version_cannot_carry_is_refused() -> None:
    request = FetchRequest(replica_id=5)
    assert FetchRequest.decode(request.to_bytes(14), 14)[0].replica_id == 5
    with pytest.raises(LocalProtocolError, match=r"FetchRequest\.replica_id .* version 15"):
        request.to_bytes(15)
    response = FetchResponse(
        responses=[FetchableTopicResponse(partitions=[PartitionData(preferred_read_replica=4)])]
    )
    assert FetchResponse.decode(response.to_bytes(11), 11)[0] == response
    with pytest.raises(LocalProtocolError, match=r"preferred_read_replica .* version 10"):
        response.to_bytes(10)
    diverging = PartitionData(diverging_epoch=EpochEndOffset(epoch=3, end_offset=9))
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[diverging])])
    assert FetchResponse.decode(response.to_bytes(12), 12)[0] == response
    with pytest.raises(LocalProtocolError, match=r"diverging_epoch .* version 11"):
        response.to_bytes(11)


def test_an_ignorable_value_is_dropped_where_it_has_no_place() -> None:
    request = FetchRequest(session_id=9, rack_id="r")
    decoded, _ = FetchRequest.decode(request.to_bytes(4), 4)
    assert decoded == FetchRequest()


def test_a_default_in_place_of_an_absent_field_is_fine() -> None:
    request = AlterPartitionRequest(broker_id=1)
    for version in (2, 3):
        assert AlterPartitionRequest.decode(request.to_bytes(version), version)[0] == request


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (FetchRequest(max_wait_ms=2**31), 11),
        (FetchRequest(max_wait_ms="soon"), 11),  # type: ignore[arg-type]
        (FetchRequest(topics=None), 11),  # type: ignore[arg-type]
        (FetchRequest(topics=[None]), 11),  # type: ignore[list-item]
        (FetchRequest(rack_id=None), 11),  # type: ignore[arg-type]
        (FetchRequest(rack_id="\ud800"), 11),
        (FetchRequest(rack_id="x" * 32768), 11),
        (FetchRequest(replica_state=None), 15),  # type: ignore[arg-type]
        (ProduceRequest(topic_data=[TopicProduceData(partition_data=[7])]), 9),  # type: ignore[list-item]
    ],
)
def test_values_that_do_not_fit_are_refused(message: Message, version: int) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be encoded"):
        message.to_bytes(version)


def test_a_compact_string_has_the_same_limit() -> None:
    request = ApiVersionsRequest(client_software_name="x" * 32768)
    with pytest.raises(LocalProtocolError, match="too long"):
        request.to_bytes(3)
    longest = ApiVersionsRequest(client_software_name="x" * 32767)
    assert ApiVersionsRequest.decode(longest.to_bytes(3), 3)[0] == longest


def test_versions_that_do_not_exist_are_refused() -> None:
    for version in (-1, 3, 19):
        with pytest.raises(LocalProtocolError, match="no version"):
            FetchRequest().encode(version)
        with pytest.raises(RemoteProtocolError, match="no version"):
            FetchRequest.decode(b"", version)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("size_bytes", [0, 1, 126, 127, 128, 16382, 16383, 16384, 70000])
def test_records_pass_through_untouched(version: int, size_bytes: int) -> None:
    records = bytearray(size_bytes)
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records)])
        ]
    )
    parts = request.encode(version)
    assert sum(part is records for part in parts) == (1 if size_bytes else 0)
    frame = bytearray(request.to_bytes(version))
    decoded, position = ProduceRequest.decode(frame, version)
    assert position == len(frame)
    found = decoded.topic_data[0].partition_data[0].records
    assert isinstance(found, memoryview)
    assert found == records
    if size_bytes:
        found[0] = 77
        assert 77 in frame
    else:
        # Not null: an empty set of records has a length of zero.
        assert found.nbytes == 0


def test_version_ranges() -> None:
    assert Versions.parse("3") == Versions(3, 3)
    assert Versions.parse("2-5") == Versions(2, 5)
    assert 9999 in Versions.parse("2+")
    assert 1 not in Versions.parse("2+")
    assert 0 not in Versions.parse("none")


@pytest.mark.real
def test_importing_the_protocol_imports_no_message() -> None:
    program = (
        "import sys, moldau.protocol, moldau.protocol.registry, moldau.protocol.headers\n"
        "import moldau.protocol.metadata_records, moldau.protocol.coordinator_records\n"
        "print([name for name in sys.modules if name.startswith('moldau.protocol.messages.')"
        " or name.endswith(('_record', '_commit', 'compile_encode', 'compile_decode'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
