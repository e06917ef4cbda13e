package interop;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Consumers that take messages and give them back or acknowledge them, each on its own. */
final class Popping {
    private static final long INVISIBLE_MS = 10_000;

    private Popping() {
    }

    /** An operator orders it, for this topic and group. */
    private static void order(Scene scene) throws Exception {
        DefaultMQAdminExt admin = scene.admin();
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            for (String address : broker.getBrokerAddrs().values()) {
                try {
                    admin.setMessageRequestMode(address, scene.topic, scene.group, MessageRequestMode.POP, 0, 5_000);
                    Out.event("ordered", "of", address);
                } catch (Exception error) {
                    Out.event("unordered", "of", address, "why", error.toString());
                }
            }
        }
        admin.shutdown();
    }

    private static DefaultMQPushConsumer consumer(Scene scene, String instance) {
        DefaultMQPushConsumer consumer = scene.consumer(instance);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(INVISIBLE_MS);
        return consumer;
    }

    /**
     * Two instances share 100 messages. Those with "bad" fail the first time; those with "slow" are held for longer than
     * they are invisible the first time. Then one leaves, and 50 more are sent.
     */
    static void run(Scene scene) throws Exception {
        order(scene);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger again = new AtomicInteger();
        DefaultMQPushConsumer a = started(scene, "a", seen, again);
        DefaultMQPushConsumer b = started(scene, "b", seen, again);
        DefaultMQProducer producer = scene.producer();
        send(scene, producer, 0, 100);
        Scene.await("100 messages", () -> seen.size() >= 100);
        Scene.await("10 messages again", () -> again.get() >= 10);
        b.shutdown();
        send(scene, producer, 100, 150);
        Scene.await("150 messages", () -> seen.size() >= 150);
        Scene.await("16 messages again", () -> again.get() >= 16);
        Thread.sleep(INVISIBLE_MS + 5_000); // what was acknowledged must not come again
        a.shutdown();
        producer.shutdown();
    }

    private static void send(Scene scene, DefaultMQProducer producer, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            String body = (i % 20 == 3 ? "bad-" : i % 20 == 7 ? "slow-" : "good-") + i;
            producer.send(scene.message(body));
            Scene.sent("sync", body, null);
        }
    }

    private static DefaultMQPushConsumer started(Scene scene, String instance, Set<String> seen, AtomicInteger again)
        throws Exception {
        DefaultMQPushConsumer consumer = consumer(scene, instance);
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0); // one at a time by default
            Scene.received(instance, message);
            String body = Scene.text(message);
            seen.add(body);
            if (message.getReconsumeTimes() > 0) {
                again.incrementAndGet();
            } else if (body.startsWith("bad")) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            } else if (body.startsWith("slow")) {
                try {
                    Thread.sleep(INVISIBLE_MS + 1_000);
                } catch (InterruptedException end) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** The usual load by such a consumer. */
    static final class Load extends Loading {
        Load(Scene scene) {
            super(scene, false);
        }

        @Override
        DefaultMQPushConsumer consumer(String instance) throws Exception {
            order(scene);
            return Popping.consumer(scene, instance);
        }
    }
}
