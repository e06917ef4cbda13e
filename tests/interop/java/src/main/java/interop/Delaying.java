package interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that wait: levels. */
final class Delaying {
    /** What the levels 1 to 3 mean, by default. */
    private static final int[] LEVELS_MS = {1_000, 5_000, 10_000};

    private Delaying() {
    }

    static void run(Scene scene) throws Exception {
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = counting(scene, count);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 9; i++) {
            int level = 1 + i % LEVELS_MS.length;
            Message message = scene.message("d-" + i);
            message.setDelayTimeLevel(level);
            send(producer, "level " + level, message, LEVELS_MS[level - 1]);
        }
        Scene.await("9 messages", () -> count.get() >= 9);
        Thread.sleep(1000);
        consumer.shutdown();
        producer.shutdown();
    }

    /** Sends it and tells from when on it may be seen, and by when it should be. */
    static SendResult send(DefaultMQProducer producer, String form, Message message, long waitMs) throws Exception {
        long before = System.currentTimeMillis();
        SendResult result = producer.send(message);
        Out.event("sent", "form", form, "body", Scene.text(message), "id", result.getMsgId(),
            "due", before + waitMs, "latest", System.currentTimeMillis() + waitMs);
        return result;
    }

    static DefaultMQPushConsumer counting(Scene scene, AtomicInteger count) throws Exception {
        DefaultMQPushConsumer consumer = scene.consumer("a");
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> Scene.received("a", message));
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** All at the lowest level. */
    static class Load extends Loading {
        private final Map<String, Long> due = new ConcurrentHashMap<>();
        private final AtomicInteger early = new AtomicInteger();
        private final AtomicLong latestMs = new AtomicLong();

        Load(Scene scene) {
            super(scene, false);
        }

        @Override
        boolean send(DefaultMQProducer producer, int key, String body) throws Exception {
            Message message = scene.message(body);
            message.setDelayTimeLevel(1);
            return send(producer, message, LEVELS_MS[0]).getSendStatus() == SendStatus.SEND_OK;
        }

        SendResult send(DefaultMQProducer producer, Message message, long waitMs) throws Exception {
            due.put(Scene.text(message), System.currentTimeMillis() + waitMs);
            return producer.send(message);
        }

        @Override
        boolean isGivenBack(MessageExt message, String body) {
            long late = System.currentTimeMillis() - due.get(body);
            if (late < 0) {
                early.incrementAndGet();
            }
            latestMs.accumulateAndGet(late, Math::max);
            return false;
        }

        @Override
        Object[] more(DefaultMQProducer producer) {
            return new Object[] {"early", early.get(), "latest_ms", latestMs.get()};
        }
    }
}
