package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;

/**
 * A producer and a consumer with default settings at work while the cluster is disturbed. Reports "running" when
 * messages flow; reads "stop" from standard input; then reports what was acknowledged, what failed and what arrived.
 */
final class Loading {
    private static final int THREADS = 4;
    private static final long PACE_MS = 5;
    private static final long FAILURE_MS = 100;

    private final Scene scene;
    private final AtomicBoolean stopped = new AtomicBoolean();
    private final AtomicInteger numbers = new AtomicInteger();
    private final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
    private final Map<String, AtomicInteger> received = new ConcurrentHashMap<>();
    private final Map<String, AtomicInteger> errors = new ConcurrentHashMap<>();
    private final AtomicLong newest = new AtomicLong();
    private final AtomicLong longestGapMs = new AtomicLong();

    private Loading(Scene scene) {
        this.scene = scene;
    }

    static void run(Scene scene) throws Exception {
        new Loading(scene).run();
    }

    private void run() throws Exception {
        DefaultMQPushConsumer consumer = scene.consumer("a");
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message ->
                received.computeIfAbsent(Scene.text(message), body -> new AtomicInteger()).incrementAndGet());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = scene.unstartedProducer("producer");
        producer.start();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < THREADS; i++) {
            Thread thread = new Thread(() -> send(producer), "send-" + i);
            thread.start();
            threads.add(thread);
        }
        Scene.await("messages to flow", () -> acknowledged.size() >= 200 && received.size() >= 200);
        longestGapMs.set(0);
        Out.event("running");
        int command = System.in.read();
        stopped.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        // Nothing since the newest acknowledgement counts as well.
        longestGapMs.accumulateAndGet(System.currentTimeMillis() - newest.get(), Math::max);
        Out.event("stopping", "command", command, "received", received.size());
        try {
            Scene.await("all that was acknowledged", () -> received.keySet().containsAll(acknowledged));
        } catch (Exception error) {
            Out.event("late", "why", error.toString());
        }
        Set<String> missing = new TreeSet<>(acknowledged);
        missing.removeAll(received.keySet());
        Out.event("load", "acknowledged", acknowledged.size(), "errors", new TreeMap<>(errors),
            "received", received.size(), "missing", missing,
            "twice", received.values().stream().filter(times -> times.get() > 1).count(),
            "longest_gap_ms", longestGapMs.get());
        consumer.shutdown();
        producer.shutdown();
    }

    private void send(DefaultMQProducer producer) {
        while (!stopped.get()) {
            String body = "m-" + numbers.incrementAndGet();
            try {
                if (producer.send(scene.message(body)).getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.add(body);
                    long now = System.currentTimeMillis();
                    long before = newest.getAndSet(now);
                    longestGapMs.accumulateAndGet(before == 0 ? 0 : now - before, Math::max);
                } else {
                    count("not SEND_OK");
                }
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                count(cause.getClass().getSimpleName()
                    + (cause instanceof MQBrokerException ? " " + ((MQBrokerException) cause).getResponseCode() : ""));
                LockSupport.parkNanos(FAILURE_MS * 1_000_000);
            }
            LockSupport.parkNanos(PACE_MS * 1_000_000);
        }
    }

    private void count(String error) {
        errors.computeIfAbsent(error, name -> new AtomicInteger()).incrementAndGet();
    }
}
