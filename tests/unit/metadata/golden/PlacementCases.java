import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.metadata.placement.ClusterDescriber;
import org.apache.kafka.metadata.placement.PartitionAssignment;
import org.apache.kafka.metadata.placement.PlacementSpec;
import org.apache.kafka.metadata.placement.StripedReplicaPlacer;
import org.apache.kafka.metadata.placement.UsableBroker;

/** Asks Apache Kafka where it places replicas when every draw is 0; one JSON object per line. See README.md. */
public class PlacementCases {
    static class Zero extends Random {
        @Override
        public int nextInt(int bound) {
            return 0;
        }
    }

    public static void main(String[] args) {
        // Racks of the brokers in order; a capital letter is a fenced broker, "-" has no rack.
        String[] clusters = {"------", "abcbca", "aabb", "aab", "abc", "aabbcc", "aAbBc", "-A", "aaab", "AAb", "abcde"};
        for (String cluster : clusters) {
            List<UsableBroker> brokers = new ArrayList<>();
            int unfenced = 0;
            for (int id = 0; id < cluster.length(); id++) {
                char c = cluster.charAt(id);
                Optional<String> rack = c == '-' ? Optional.empty() : Optional.of("" + Character.toLowerCase(c));
                brokers.add(new UsableBroker(id, rack, Character.isUpperCase(c)));
                unfenced += Character.isUpperCase(c) ? 0 : 1;
            }
            for (int factor = 1; factor <= Math.min(4, cluster.length()); factor++) {
                List<List<Integer>> placed = new ArrayList<>();
                for (PartitionAssignment each : new StripedReplicaPlacer(new Zero()).place(
                        new PlacementSpec(0, 20, (short) factor), describer(brokers)).assignments()) {
                    placed.add(each.replicas());
                }
                System.out.println("{\"cluster\":\"" + cluster + "\",\"factor\":" + factor
                    + ",\"placed\":" + placed.toString().replace(" ", "") + "}");
            }
        }
    }

    static ClusterDescriber describer(List<UsableBroker> brokers) {
        return new ClusterDescriber() {
            @Override
            public Iterator<UsableBroker> usableBrokers() {
                return brokers.iterator();
            }

            @Override
            public Uuid defaultDir(int brokerId) {
                return Uuid.ZERO_UUID;
            }
        };
    }
}
