import java.net.InetSocketAddress;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.feature.SupportedVersionRange;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.raft.Endpoints;
import org.apache.kafka.raft.LeaderAndEpoch;
import org.apache.kafka.raft.RaftUtil;
import org.apache.kafka.raft.ReplicaKey;
import org.apache.kafka.server.common.OffsetAndEpoch;

/**
 * Prints what Apache Kafka's own classes write for the quorum's messages: name, version, hex.
 * The output is quorum_messages.txt. To make it anew: javac and java with Kafka's raft, clients and
 * server-common jars on the class path.
 */
public class QuorumMessages {
    static final TopicPartition LOG = new TopicPartition("__cluster_metadata", 0);
    static final String CLUSTER = "cluster-of-the-tests";
    static final ListenerName LISTENER = new ListenerName("CONTROLLER");
    static final ReplicaKey ONE = ReplicaKey.of(1, new Uuid(0, 0x1001));
    static final ReplicaKey TWO = ReplicaKey.of(2, new Uuid(0, 0x1002));

    static void print(String name, ApiMessage message, int... versions) {
        for (int version : versions) {
            var buffer = MessageUtil.toByteBufferAccessor(message, (short) version).buffer();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            System.out.println(name + " " + version + " " + HexFormat.of().formatHex(bytes));
        }
    }

    static FetchRequestData fetch(boolean before15) {
        FetchRequestData request = RaftUtil.singletonFetchRequest(LOG, Uuid.METADATA_TOPIC_ID, each -> each
            .setCurrentLeaderEpoch(7).setLastFetchedEpoch(6).setFetchOffset(42)
            .setReplicaDirectoryId(TWO.directoryId().get()).setHighWatermark(40));
        request.setMaxBytes(1048576).setMaxWaitMs(500).setClusterId(CLUSTER);
        if (before15) {
            return request.setReplicaId(2);
        }
        return request.setReplicaState(new FetchRequestData.ReplicaState().setReplicaId(2));
    }

    static FetchResponseData fetched(short version, Endpoints endpoints) {
        return RaftUtil.singletonFetchResponse(
            LISTENER, version, LOG, Uuid.METADATA_TOPIC_ID, Errors.NONE, 1, endpoints, each -> {
                each.setRecords(MemoryRecords.EMPTY).setErrorCode(Errors.NONE.code())
                    .setLogStartOffset(3).setHighWatermark(40);
                each.currentLeader().setLeaderEpoch(7).setLeaderId(1);
                each.divergingEpoch().setEpoch(5).setEndOffset(30);
            });
    }

    public static void main(String[] none) {
        Map<ListenerName, InetSocketAddress> addresses = new LinkedHashMap<>();
        addresses.put(LISTENER, InetSocketAddress.createUnresolved("host1", 9093));
        Endpoints endpoints = Endpoints.fromInetSocketAddresses(addresses);

        print("VoteRequest", RaftUtil.singletonVoteRequest(LOG, CLUSTER, 7, ONE, TWO, 6, 42, true), 2);
        print("VoteRequestOfCandidate",
            RaftUtil.singletonVoteRequest(LOG, CLUSTER, 7, ONE, TWO, 6, 42, false), 0, 1, 2);
        print("BeginQuorumEpochRequest",
            RaftUtil.singletonBeginQuorumEpochRequest(LOG, CLUSTER, 7, 1, endpoints, TWO), 0, 1);
        print("EndQuorumEpochRequest",
            RaftUtil.singletonEndQuorumEpochRequest(LOG, CLUSTER, 7, 1, List.of(TWO)), 0, 1);
        print("FetchRequest", fetch(true), 12, 13, 14);
        print("FetchRequest", fetch(false), 15, 16, 17, 18);
        print("FetchSnapshotRequest", RaftUtil.singletonFetchSnapshotRequest(
            CLUSTER, TWO, LOG, 7, new OffsetAndEpoch(30, 5), 1048576, 99), 0, 1);
        print("UpdateRaftVoterRequest", RaftUtil.updateVoterRequest(
            CLUSTER, ONE, 7, new SupportedVersionRange((short) 0, (short) 1), endpoints), 0);
        print("AddRaftVoterRequest", RaftUtil.addVoterRequest(CLUSTER, 30000, ONE, endpoints, true), 0, 1);
        print("RemoveRaftVoterRequest", RaftUtil.removeVoterRequest(CLUSTER, ONE), 0);

        for (short version = 0; version <= 2; version++) {
            print("VoteResponse", RaftUtil.singletonVoteResponse(
                LISTENER, version, Errors.NONE, LOG, Errors.NONE, 7, 1, true, endpoints), version);
        }
        for (short version = 0; version <= 1; version++) {
            print("BeginQuorumEpochResponse", RaftUtil.singletonBeginQuorumEpochResponse(LISTENER, version,
                Errors.NONE, LOG, Errors.FENCED_LEADER_EPOCH, 7, 1, endpoints), version);
            print("EndQuorumEpochResponse", RaftUtil.singletonEndQuorumEpochResponse(LISTENER, version,
                Errors.NONE, LOG, Errors.NONE, 7, 1, endpoints), version);
            print("FetchSnapshotResponse", RaftUtil.singletonFetchSnapshotResponse(
                LISTENER, version, LOG, 1, endpoints, each -> {
                    each.snapshotId().setEndOffset(30).setEpoch(5);
                    each.currentLeader().setLeaderEpoch(7).setLeaderId(1);
                    return each.setSize(500).setPosition(99).setUnalignedRecords(MemoryRecords.EMPTY);
                }), version);
        }
        for (short version = 12; version <= 18; version++) {
            print("FetchResponse", fetched(version, endpoints), version);
        }
        print("UpdateRaftVoterResponse", RaftUtil.updateVoterResponse(Errors.NONE, LISTENER,
            new LeaderAndEpoch(java.util.OptionalInt.of(1), 7), endpoints), 0);
        print("AddRaftVoterResponse", RaftUtil.addVoterResponse(Errors.NONE, null), 0, 1);
        print("RemoveRaftVoterResponse", RaftUtil.removeVoterResponse(Errors.VOTER_NOT_FOUND, null), 0);
        print("VoteOfAnotherCluster",
            RaftUtil.errorResponse(org.apache.kafka.common.protocol.ApiKeys.VOTE, Errors.INCONSISTENT_CLUSTER_ID),
            0, 1, 2);
    }
}
