// Runs Apache Kafka's own assignors on the cases given as JSON on standard input, and writes what each of them
// assigned. tests/unit/client/consumer/assignors/make_vectors.py starts it.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;

public class AssignorVectors {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        ArrayNode answers = JSON.createArrayNode();
        for (JsonNode each : JSON.readTree(System.in)) {
            answers.add(run(each));
        }
        System.out.println(JSON.writeValueAsString(answers));
    }

    static JsonNode run(JsonNode given) {
        ConsumerPartitionAssignor assignor = switch (given.get("assignor").asText()) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
        ObjectNode result = JSON.createObjectNode();
        try {
            var assigned = assignor.assign(cluster(given.get("topics")),
                    new ConsumerPartitionAssignor.GroupSubscription(members(given.get("members"))));
            for (var entry : new TreeMap<>(assigned.groupAssignment()).entrySet()) {
                ArrayNode partitions = result.putArray(entry.getKey());
                entry.getValue().partitions().stream().map(TopicPartition::toString).sorted().forEach(partitions::add);
            }
        } catch (RuntimeException | AssertionError problem) {
            result.put("failure", problem.toString());
        }
        return result;
    }

    static Cluster cluster(JsonNode topics) {
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Node> nodes = new HashMap<>();
        topics.fields().forEachRemaining(topic -> {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : racks) {
                    replicas.add(nodes.computeIfAbsent(rack.asText(),
                            name -> new Node(nodes.size(), "host", 9092, name)));
                }
                if (replicas.isEmpty()) {
                    replicas.add(nodes.computeIfAbsent("", name -> new Node(nodes.size(), "host", 9092, null)));
                }
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), number++, all[0], all, all));
            }
        });
        return new Cluster("cluster", nodes.values(), partitions, Set.of(), Set.of());
    }

    static Map<String, ConsumerPartitionAssignor.Subscription> members(JsonNode given) {
        Map<String, ConsumerPartitionAssignor.Subscription> members = new HashMap<>();
        for (JsonNode member : given) {
            List<String> topics = new ArrayList<>();
            member.get("topics").forEach(topic -> topics.add(topic.asText()));
            List<TopicPartition> owned = new ArrayList<>();
            member.get("owned").forEach(each -> {
                String text = each.asText();
                int dash = text.lastIndexOf('-');
                owned.add(new TopicPartition(text.substring(0, dash), Integer.parseInt(text.substring(dash + 1))));
            });
            JsonNode userData = member.get("user_data");
            var subscription = new ConsumerPartitionAssignor.Subscription(topics,
                    userData.isNull() ? null : ByteBuffer.wrap(HexFormat.of().parseHex(userData.asText())),
                    owned, member.get("generation").isNull() ? -1 : member.get("generation").asInt(),
                    Optional.ofNullable(member.get("rack").isNull() ? null : member.get("rack").asText()));
            if (!member.get("instance").isNull()) {
                subscription.setGroupInstanceId(Optional.of(member.get("instance").asText()));
            }
            members.put(member.get("id").asText(), subscription);
        }
        return members;
    }
}
