import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer and a consumer with nothing but their defaults, at work until told otherwise.
 *
 * <p>Arguments: bootstrap servers, topic, count of partitions, milliseconds between records (0: no
 * producer), client.rack (may be empty). Each partition gets the numbers 0, 1, 2, ... Standard
 * output, a line each: "A partition offset number" acknowledged, "R partition offset number" read,
 * "F text" failed, "E" all that was handed over is decided. Standard input: "stop" writing, "quit".
 */
public class ReplicationClient {
    static volatile boolean writing = true;
    static volatile boolean reading = true;

    static void say(String line) {
        synchronized (System.out) {
            System.out.println(line);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        int pauseMs = Integer.parseInt(arguments[3]);
        String rack = arguments[4];
        Thread reader = start(() -> consume(servers, topic, partitions, rack));
        Thread writer = start(() -> {
            if (pauseMs > 0) {
                produce(servers, topic, partitions, pauseMs);
            }
            say("E");
        });
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        String command = commands.readLine();
        while (command != null && !command.equals("quit")) {
            writing = false;
            command = commands.readLine();
        }
        writing = false;
        reading = false;
        reader.join();
        writer.join();
    }

    interface Work {
        void run() throws Exception;
    }

    static Thread start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception failure) {
                say("F " + failure);
            }
        });
        thread.start();
        return thread;
    }

    static void produce(String servers, String topic, int partitions, int pauseMs)
            throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", servers);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; writing; number++) {
                for (int partition = 0; partition < partitions; partition++) {
                    String value = Integer.toString(number);
                    int where = partition;
                    producer.send(
                            new ProducerRecord<>(topic, partition, null, value),
                            (written, failure) -> {
                                if (failure != null) {
                                    say("F delivery: " + failure);
                                } else {
                                    say("A " + where + " " + written.offset() + " " + value);
                                }
                            });
                }
                Thread.sleep(pauseMs);
            }
            producer.flush();
        }
    }

    static void consume(String servers, String topic, int partitions, String rack) {
        Properties config = new Properties();
        config.put("bootstrap.servers", servers);
        if (!rack.isEmpty()) {
            config.put("client.rack", rack);
        }
        List<TopicPartition> assigned = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            assigned.add(new TopicPartition(topic, partition));
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(assigned);
            assigned.forEach(partition -> consumer.seek(partition, 0));
            while (reading) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    say("R " + record.partition() + " " + record.offset() + " " + record.value());
                }
            }
        }
    }
}
