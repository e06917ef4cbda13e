package interop;

import java.util.ArrayList;
import java.util.Arrays;
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
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Producer and consumers with default settings at work while the cluster is disturbed. Reports "running" when messages
 * flow; reads "stop" from standard input; then reports what was acknowledged, what failed and what arrived.
 *
 * Concurrent: a number is sent once, and one in fifty is given back to the broker when it comes first. Ordered: each
 * thread sends under a key of its own and sends a number again until it is acknowledged; two consumers. What else
 * messages can be, subclasses say.
 */
class Loading {
    private static final int THREADS = 4;
    private static final int GIVEN_BACK_EACH = 50;
    private static final long PACE_MS = 5;
    private static final long FAILURE_MS = 100;

    final Scene scene;
    private final boolean ordered;
    private final AtomicBoolean stopped = new AtomicBoolean();
    private final AtomicInteger numbers = new AtomicInteger();
    private final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
    private final Map<String, AtomicInteger> received = new ConcurrentHashMap<>();
    private final Map<String, AtomicInteger> errors = new ConcurrentHashMap<>();
    private final AtomicLong newest = new AtomicLong();
    private final AtomicLong longestGapMs = new AtomicLong();

    private final int[] expected = new int[THREADS];
    private final AtomicInteger disorder = new AtomicInteger();

    Loading(Scene scene, boolean ordered) {
        this.scene = scene;
        this.ordered = ordered;
    }

    static void concurrent(Scene scene) throws Exception {
        new Loading(scene, false).run();
    }

    static void ordered(Scene scene) throws Exception {
        new Loading(scene, true).run();
    }

    /** The producer that all threads use, started. */
    DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = scene.unstartedProducer("producer");
        producer.start();
        return producer;
    }

    /** One that has neither a subscription nor a listener yet. */
    DefaultMQPushConsumer consumer(String instance) throws Exception {
        return scene.consumer(instance);
    }

    /** Whether the message was taken; any exception is counted by its name. */
    boolean send(DefaultMQProducer producer, int key, String body) throws Exception {
        SendResult result = ordered ? producer.send(scene.message(body), new SelectMessageQueueByHash(), key)
            : producer.send(scene.message(body));
        return result.getSendStatus() == SendStatus.SEND_OK;
    }

    /** Whether it is to be consumed later once. */
    boolean isGivenBack(MessageExt message, String body) {
        return message.getReconsumeTimes() == 0 && Integer.parseInt(body) % GIVEN_BACK_EACH == 0;
    }

    /** Whether it is to arrive once it was taken, or must not. */
    boolean isWanted(String body) {
        return true;
    }

    /** What else is told at the end, names and values in turn, while all is still running. */
    Object[] more(DefaultMQProducer producer) throws Exception {
        return new Object[0];
    }

    void run() throws Exception {
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (String instance : ordered ? List.of("a", "b") : List.of("a")) {
            DefaultMQPushConsumer consumer = consumer(instance);
            consumer.subscribe(scene.topic, "*");
            if (ordered) {
                consumer.registerMessageListener(orderly());
            } else {
                consumer.registerMessageListener(concurrently());
            }
            consumer.start();
            consumers.add(consumer);
        }
        DefaultMQProducer producer = producer();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < THREADS; i++) {
            int key = i;
            Thread thread = new Thread(() -> send(producer, key), "send-" + i);
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
            Scene.await("all that was acknowledged", () -> missing().isEmpty());
        } catch (Exception error) {
            Out.event("late", "why", error.toString());
        }
        Thread.sleep(500); // what must not arrive may be on its way
        Set<String> unwanted = new TreeSet<>(received.keySet());
        unwanted.removeIf(this::isWanted);
        List<Object> fields = new ArrayList<>(List.of("acknowledged", acknowledged.size(), "errors", new TreeMap<>(errors),
            "wanted", acknowledged.stream().filter(this::isWanted).count(),
            "received", received.size(), "missing", missing(), "unwanted", unwanted,
            "twice", received.values().stream().filter(times -> times.get() > 1).count(),
            "longest_gap_ms", longestGapMs.get(), "disorder", disorder.get()));
        fields.addAll(Arrays.asList(more(producer)));
        Out.event("load", fields.toArray());
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
    }

    private Set<String> missing() {
        Set<String> missing = new TreeSet<>(acknowledged);
        missing.removeIf(body -> received.containsKey(body) || !isWanted(body));
        return missing;
    }

    private MessageListenerConcurrently concurrently() {
        return (messages, context) -> {
            MessageExt message = messages.get(0); // one at a time by default
            String body = Scene.text(message);
            if (isGivenBack(message, body)) {
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            received.computeIfAbsent(body, each -> new AtomicInteger()).incrementAndGet();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private MessageListenerOrderly orderly() {
        return (messages, context) -> {
            for (MessageExt message : messages) {
                String body = Scene.text(message);
                received.computeIfAbsent(body, each -> new AtomicInteger()).incrementAndGet();
                int key = Integer.parseInt(body.substring(0, body.indexOf('-')));
                int number = Integer.parseInt(body.substring(body.indexOf('-') + 1));
                synchronized (expected) {
                    // What came before may come again; what has not come yet comes in its turn.
                    if (number > expected[key]) {
                        disorder.incrementAndGet();
                    }
                    expected[key] = Math.max(expected[key], number + 1);
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        };
    }

    private void send(DefaultMQProducer producer, int key) {
        int number = 0;
        while (!stopped.get()) {
            String body = ordered ? key + "-" + number : String.valueOf(numbers.incrementAndGet());
            try {
                if (send(producer, key, body)) {
                    number++;
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
