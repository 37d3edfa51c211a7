import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/**
 * Prints what Apache Kafka's Java producer makes of keys: hex, murmur2, and the partition for each
 * count. Its output is tests/unit/client/producer/murmur2_vectors.txt.
 */
public class Murmur2Vectors {
    static final int[] COUNTS = {1, 2, 3, 7, 12, 50, 1000, 2147483647};

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.length() == 0 ? "-" : text.toString();
    }

    public static void main(String[] none) {
        List<byte[]> keys = new ArrayList<>();
        for (String text : new String[] {
            "", "a", "ab", "abc", "abcd", "21", "AA", "UA123", "flights", "a somewhat longer key, of 40 bytes in all", "ключ", "键"
        }) {
            keys.add(text.getBytes(StandardCharsets.UTF_8));
        }
        Random dice = new Random(794);
        for (int size = 1; size <= 40; size++) {
            byte[] key = new byte[size];
            dice.nextBytes(key);
            keys.add(key);
        }
        for (int size : new int[] {63, 64, 65, 255, 1000}) {
            byte[] key = new byte[size];
            dice.nextBytes(key);
            keys.add(key);
        }
        byte[] ones = new byte[7];
        Arrays.fill(ones, (byte) 0xff);
        keys.add(ones);
        keys.add(new byte[8]);
        for (byte[] key : keys) {
            StringBuilder line = new StringBuilder(hex(key) + " " + Utils.murmur2(key));
            for (int count : COUNTS) {
                line.append(" ").append(BuiltInPartitioner.partitionForKey(key, count));
            }
            System.out.println(line);
        }
    }
}
