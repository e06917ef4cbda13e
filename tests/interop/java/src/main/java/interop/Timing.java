package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Messages that wait until any time, and are called back meanwhile. */
final class Timing {
    private static final long DAYS_41_SECONDS = 41 * 86_400L;

    private Timing() {
    }

    static void timers(Scene scene) throws Exception {
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = Delaying.counting(scene, count);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 3; i++) {
            Message seconds = scene.message("seconds-" + i);
            seconds.setDelayTimeSec(1 + i);
            Delaying.send(producer, "seconds", seconds, 1000 * (1 + i));
            Message milliseconds = scene.message("milliseconds-" + i);
            milliseconds.setDelayTimeMs(300 + 777 * i);
            Delaying.send(producer, "milliseconds", milliseconds, 300 + 777 * i);
            Message time = scene.message("time-" + i);
            long wait = 400 + 1111 * i;
            time.setDeliverTimeMs(System.currentTimeMillis() + wait);
            // The time was fixed before the send began.
            Delaying.send(producer, "time", time, wait - 50);
        }
        Message past = scene.message("past");
        past.setDeliverTimeMs(System.currentTimeMillis() - 1000);
        Delaying.send(producer, "past", past, 0);
        Message distant = scene.message("distant");
        distant.setDelayTimeSec(DAYS_41_SECONDS);
        refused("distant", () -> producer.send(distant));
        Scene.await("10 messages", () -> count.get() >= 10);
        Thread.sleep(1000);
        consumer.shutdown();
        producer.shutdown();
    }

    static void recall(Scene scene) throws Exception {
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = Delaying.counting(scene, count);
        DefaultMQProducer producer = scene.producer();
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            Message message = scene.message("r-" + i);
            message.setDelayTimeSec(6);
            results.add(Delaying.send(producer, "seconds", message, 6000));
        }
        for (int i = 0; i < 6; i += 2) {
            String id = producer.recallMessage(scene.topic, results.get(i).getRecallHandle());
            Out.event("recalled", "body", "r-" + i, "id", id);
        }
        String taken = results.get(1).getRecallHandle();
        String plain = new String(Base64.getUrlDecoder().decode(taken), StandardCharsets.UTF_8);
        String[] parts = plain.split(" ");
        parts[4] = parts[4].substring(0, parts[4].length() - 1) + (parts[4].endsWith("0") ? "1" : "0");
        String forged = Base64.getUrlEncoder().encodeToString(String.join(" ", parts).getBytes(StandardCharsets.UTF_8));
        Out.event("handle", "plain", plain);
        outcome("again", () -> producer.recallMessage(scene.topic, results.get(0).getRecallHandle()));
        outcome("forged", () -> producer.recallMessage(scene.topic, forged));
        Scene.await("3 messages", () -> count.get() >= 3);
        Thread.sleep(2000);
        outcome("delivered", () -> producer.recallMessage(scene.topic, taken));
        consumer.shutdown();
        producer.shutdown();
    }

    private interface Call {
        Object run() throws Exception;
    }

    private static void refused(String what, Call call) throws Exception {
        try {
            call.run();
        } catch (MQBrokerException error) {
            Out.event("refused", "what", what, "code", error.getResponseCode(), "why", error.getErrorMessage());
        }
    }

    private static void outcome(String what, Call call) throws Exception {
        try {
            Out.event("recall", "what", what, "value", String.valueOf(call.run()));
        } catch (MQBrokerException error) {
            Out.event("recall", "what", what, "code", error.getResponseCode(), "why", error.getErrorMessage());
        }
    }

    /** Some at a level, some at a time, and some of these called back. */
    static final class Load extends Delaying.Load {
        private final Set<String> recalled = ConcurrentHashMap.newKeySet();
        private final AtomicInteger unrecalled = new AtomicInteger();

        Load(Scene scene) {
            super(scene);
        }

        @Override
        boolean send(DefaultMQProducer producer, int key, String body) throws Exception {
            int number = Integer.parseInt(body);
            if (number % 3 == 0) {
                return super.send(producer, key, body);
            }
            long wait = number % 3 == 1 ? 1_500 : 4_000;
            Message message = scene.message(body);
            message.setDelayTimeMs(wait);
            SendResult result = send(producer, message, wait);
            if (number % 6 == 2) {
                try {
                    producer.recallMessage(scene.topic, result.getRecallHandle());
                    recalled.add(body);
                } catch (Exception error) {
                    unrecalled.incrementAndGet(); // it may be and it may be not
                    return false;
                }
            }
            return result.getSendStatus() == SendStatus.SEND_OK;
        }

        @Override
        boolean isWanted(String body) {
            return !recalled.contains(body);
        }

        @Override
        Object[] more(DefaultMQProducer producer) {
            List<Object> fields = new ArrayList<>(List.of(super.more(producer)));
            fields.addAll(List.of("recalled", recalled.size(), "unrecalled", unrecalled.get()));
            return fields.toArray();
        }
    }
}
