package interop;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.apis.producer.Producer;

/** A producer and a push consumer at work while servers are disturbed. */
final class GrpcLoad {
    private GrpcLoad() {
    }

    /** Reports "running" when messages flow; reads a line from standard input; then tells what became of them. */
    static void run(GrpcScene scene) throws Exception {
        Set<String> acknowledged = new ConcurrentSkipListSet<>();
        Map<String, Integer> errors = new ConcurrentHashMap<>();
        AtomicBoolean stopped = new AtomicBoolean();
        AtomicLong newest = new AtomicLong(System.currentTimeMillis());
        AtomicLong longestGap = new AtomicLong();
        var consumer = scene.push("load", body -> false);
        Producer producer = scene.producer();
        Thread sender = new Thread(() -> {
            for (int number = 0; !stopped.get(); number++) {
                String body = String.valueOf(number);
                try {
                    producer.send(scene.message(body).build());
                    acknowledged.add(body);
                    long now = System.currentTimeMillis();
                    longestGap.accumulateAndGet(now - newest.getAndSet(now), Math::max);
                    Thread.sleep(10);
                } catch (Exception error) {
                    errors.merge(String.valueOf(error), 1, Integer::sum);
                    pause();
                }
            }
        });
        sender.start();
        GrpcScene.await("messages to flow", () -> acknowledged.size() >= 100 && scene.received.size() >= 100);
        longestGap.set(0);
        Out.event("running");
        System.in.read();
        stopped.set(true);
        sender.join();
        long end = System.currentTimeMillis() + GrpcScene.PATIENCE_MS;
        while (!missing(acknowledged, scene).isEmpty() && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        int different = new HashSet<>(scene.received).size();
        Out.event("load", "acknowledged", acknowledged.size(), "errors", errors, "received", different,
            "missing", missing(acknowledged, scene), "twice", scene.received.size() - different,
            "longest_gap_ms", longestGap.get());
        consumer.close();
        producer.close();
    }

    private static Set<String> missing(Set<String> acknowledged, GrpcScene scene) {
        Set<String> missing = new TreeSet<>(acknowledged);
        missing.removeAll(new HashSet<>(scene.received));
        return missing;
    }

    private static void pause() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
