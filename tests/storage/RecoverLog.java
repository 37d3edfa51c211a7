import java.io.File;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Lets Apache Kafka recover a partition's directory as after a crash, all its indexes made anew from
 * the batches, and prints what readers of committed data would be told at every offset.
 */
public class RecoverLog {
    public static void main(String[] args) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(
            new File(args[0]), new LogConfig(Map.of()), 0L, 0L, scheduler,
            new BrokerTopicStats(), Time.SYSTEM, 300_000,
            new ProducerStateManagerConfig(86_400_000, true), 600_000,
            new LogDirFailureChannel(1), false, Optional.empty());
        long end = log.logEndOffset();
        for (long highWatermark = 0; highWatermark <= end; highWatermark++) {
            log.updateHighWatermark(highWatermark);
            System.out.println("stable " + highWatermark + " " + log.lastStableOffset());
        }
        for (long offset = 0; offset < end; offset++) {
            for (var aborted : log.collectAbortedTransactions(offset, end)) {
                System.out.println("aborted " + offset + " " + aborted.producerId() + " "
                    + aborted.firstOffset() + " " + aborted.lastOffset() + " "
                    + aborted.lastStableOffset());
            }
        }
        for (var producer : log.activeProducers()) {
            System.out.println("producer " + producer.producerId() + " " + producer.producerEpoch()
                + " " + producer.lastSequence() + " " + producer.coordinatorEpoch() + " "
                + producer.currentTxnStartOffset());
        }
        log.close();
        scheduler.shutdown();
        System.exit(0);
    }
}
