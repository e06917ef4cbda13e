package interop;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that ask for messages themselves. */
final class Pulling {
    private static final int MESSAGES = 100;

    private Pulling() {
    }

    /** Every queue to its end with the old pull consumer, offsets stored and asked for again. */
    @SuppressWarnings("deprecation")
    static void pull(Scene scene) throws Exception {
        long before = send(scene);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(scene.group, Keys.ofClients());
        consumer.setNamesrvAddr(scene.namesrv);
        consumer.setInstanceName("a");
        consumer.start();
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(scene.topic);
        for (MessageQueue queue : queues) {
            long offset = consumer.minOffset(queue);
            while (true) {
                PullResult result = consumer.pull(queue, "*", offset, 10);
                if (result.getPullStatus() != PullStatus.FOUND) {
                    break;
                }
                result.getMsgFoundList().forEach(message -> Scene.received("a", message));
                offset = result.getNextBeginOffset();
            }
            consumer.updateConsumeOffset(queue, offset);
            consumer.getOffsetStore().persist(queue);
            Out.event("end", "queue", queue.getQueueId(), "offset", offset, "max", consumer.maxOffset(queue),
                "at start", consumer.searchOffset(queue, before), "at end",
                consumer.searchOffset(queue, System.currentTimeMillis() + 60_000));
        }
        Thread.sleep(1000);
        for (MessageQueue queue : queues) {
            Out.event("stored", "queue", queue.getQueueId(), "offset", consumer.fetchConsumeOffset(queue, true));
        }
        MessageQueue held = queues.iterator().next();
        Thread late = new Thread(() -> {
            try {
                Thread.sleep(1500);
                DefaultMQProducer producer = scene.producer("late");
                producer.send(scene.message("late"), held);
                producer.shutdown();
            } catch (Exception error) {
                Out.event("unsent", "form", "late", "why", error.toString());
            }
        });
        late.start();
        PullResult woken = consumer.pullBlockIfNotFound(held, "*", consumer.maxOffset(held), 10);
        Out.event("woken", "status", woken.getPullStatus(),
            "body", woken.getPullStatus() == PullStatus.FOUND ? Scene.text(woken.getMsgFoundList().get(0)) : null);
        late.join();
        consumer.shutdown();
    }

    /** The new one: subscribed with two instances, then with queues of its own choice, seeking. */
    static void litePull(Scene scene) throws Exception {
        long before = send(scene);
        List<DefaultLitePullConsumer> shared = new ArrayList<>();
        for (String instance : List.of("a", "b")) {
            DefaultLitePullConsumer consumer = consumer(scene, instance);
            consumer.subscribe(scene.topic, "*");
            consumer.start();
            shared.add(consumer);
        }
        Set<String> seen = new HashSet<>();
        Scene.await("all messages by two instances", () -> {
            for (DefaultLitePullConsumer consumer : shared) {
                for (MessageExt message : consumer.poll(100)) {
                    Scene.received("shared", message);
                    seen.add(Scene.text(message));
                }
            }
            return seen.size() == MESSAGES;
        });
        shared.get(0).commitSync();
        shared.get(1).commitSync();
        shared.forEach(DefaultLitePullConsumer::shutdown);

        DefaultLitePullConsumer own = consumer(scene, "own");
        own.start();
        List<MessageQueue> queues = new ArrayList<>(own.fetchMessageQueues(scene.topic));
        own.setAutoCommit(false);
        own.assign(queues);
        for (MessageQueue queue : queues) {
            Out.event("stored", "queue", queue.getQueueId(), "offset", own.committed(queue),
                "at start", own.offsetForTimestamp(queue, before));
            own.seek(queue, 0);
        }
        Set<String> again = new HashSet<>();
        Scene.await("all messages once more", () -> {
            for (MessageExt message : own.poll(100)) {
                Scene.received("own", message);
                again.add(Scene.text(message));
            }
            return again.size() == MESSAGES;
        });
        own.shutdown();
    }

    private static DefaultLitePullConsumer consumer(Scene scene, String instance) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(scene.group, Keys.ofClients());
        consumer.setNamesrvAddr(scene.namesrv);
        consumer.setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static long send(Scene scene) throws Exception {
        long before = System.currentTimeMillis();
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < MESSAGES; i++) {
            producer.send(scene.message("m-" + i));
            Scene.sent("sync", "m-" + i, null);
        }
        producer.shutdown();
        return before;
    }
}
