package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Push consumers: sharing queues, each reading everything, in order, and selecting messages. */
final class Pushing {
    private final Scene scene;
    private final Set<String> seen = ConcurrentHashMap.newKeySet();
    private final AtomicInteger count = new AtomicInteger();

    private Pushing(Scene scene) {
        this.scene = scene;
    }

    /** Two instances share the queues, one leaves, and a third goes on where all ended. */
    static void push(Scene scene) throws Exception {
        Pushing all = new Pushing(scene);
        DefaultMQProducer producer = scene.producer();
        DefaultMQPushConsumer a = all.started("a", "*");
        DefaultMQPushConsumer b = all.started("b", "*");
        Scene.await("two queues each", () -> scene.queues(a) == 2 && scene.queues(b) == 2);
        all.send(producer, 0, 100);
        all.awaitSeen(100);
        b.shutdown();
        Out.event("stopped", "by", "b");
        Scene.await("all queues for one", () -> scene.queues(a) == Scene.QUEUES);
        all.send(producer, 100, 200);
        all.awaitSeen(200);
        a.shutdown();
        Out.event("stopped", "by", "a");
        all.send(producer, 200, 220);
        DefaultMQPushConsumer c = all.started("c", "*");
        all.awaitSeen(220);
        Thread.sleep(1000);
        c.shutdown();
        producer.shutdown();
    }

    /** Two instances read everything. */
    static void broadcast(Scene scene) throws Exception {
        Pushing all = new Pushing(scene);
        DefaultMQProducer producer = scene.producer();
        all.send(producer, 0, 10);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (String instance : List.of("a", "b")) {
            DefaultMQPushConsumer consumer = scene.consumer(instance);
            Scene.broadcasting(consumer);
            consumers.add(all.start(consumer, instance, "*"));
        }
        all.send(producer, 10, 40);
        Scene.await("40 messages twice", () -> all.count.get() >= 80);
        Thread.sleep(1000);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
    }

    /** Messages of one key arrive in the order they were sent, one at a time, while instances come and go. */
    static void orderly(Scene scene) throws Exception {
        Pushing all = new Pushing(scene);
        DefaultMQProducer producer = scene.producer();
        DefaultMQPushConsumer a = all.startedOrderly("a");
        DefaultMQPushConsumer b = all.startedOrderly("b");
        Scene.await("two queues each", () -> scene.queues(a) == 2 && scene.queues(b) == 2);
        all.sendKeys(producer, 0, 20);
        all.awaitSeen(160);
        b.shutdown();
        all.sendKeys(producer, 20, 40);
        all.awaitSeen(320);
        Thread.sleep(500);
        a.shutdown();
        producer.shutdown();
    }

    static void tags(Scene scene) throws Exception {
        Pushing all = new Pushing(scene);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 40; i++) {
            // AaTag and BBTag have the same hash code: the broker lets both pass, the client does not.
            String tag = List.of("AaTag", "BBTag", "TagC", "").get(i % 4);
            String body = "m-" + i + "-" + tag;
            producer.send(new Message(scene.topic, tag, body.getBytes()));
            Scene.sent("tagged", body, null);
        }
        DefaultMQPushConsumer consumer = all.started("a", "AaTag || TagC");
        all.awaitSeen(20);
        Thread.sleep(1000);
        consumer.shutdown();
        producer.shutdown();
    }

    static void sql(Scene scene) throws Exception {
        Pushing all = new Pushing(scene);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 40; i++) {
            Message message = new Message(scene.topic, i % 2 == 0 ? "even" : "odd", ("m-" + i).getBytes());
            message.putUserProperty("number", String.valueOf(i));
            if (i % 4 != 0) {
                message.putUserProperty("colour", i % 3 == 0 ? "rot" : "grün");
            }
            producer.send(message);
            Scene.sent("with properties", "m-" + i, null);
        }
        DefaultMQPushConsumer consumer = scene.consumer("a");
        consumer.subscribe(scene.topic, MessageSelector.bySql(
            "(TAGS = 'odd' OR colour IS NULL) AND number BETWEEN 5 AND 35 AND NOT (colour = 'rot')"
                + " OR colour IN ('blau', 'grün') AND number = 2"));
        consumer.registerMessageListener(all.listener("a"));
        consumer.start();
        Scene.await("messages", () -> all.count.get() > 0);
        Thread.sleep(3000);
        consumer.shutdown();

        DefaultMQPushConsumer wrong = scene.consumer("wrong", scene.group + "-wrong");
        wrong.subscribe(scene.topic, MessageSelector.bySql("number > AND"));
        wrong.registerMessageListener(all.listener("wrong"));
        try {
            wrong.start();
            Out.event("accepted", "expression", "number > AND");
        } catch (MQClientException error) {
            Out.event("refused", "why", error.getMessage());
        }
        producer.shutdown();
    }

    /** Where a new group begins. Broadcasting, since the broker lets a clustering one read a young queue from 0. */
    static void start(Scene scene) throws Exception {
        DefaultMQProducer producer = scene.producer();
        Pushing all = new Pushing(scene);
        all.send(producer, 0, 8);
        Thread.sleep(2100);
        String time = UtilAll.timeMillisToHumanString3(System.currentTimeMillis());
        all.send(producer, 8, 16);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (ConsumeFromWhere where : List.of(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)) {
            String name = where.name().replaceAll("CONSUME_FROM_|_OFFSET", "").toLowerCase();
            DefaultMQPushConsumer consumer = scene.consumer(name, scene.group + "-" + name);
            Scene.broadcasting(consumer);
            consumer.setConsumeFromWhere(where);
            consumer.setConsumeTimestamp(time);
            consumers.add(all.start(consumer, name, "*"));
            Scene.await("all queues", () -> scene.queues(consumer) == Scene.QUEUES);
        }
        DefaultMQPushConsumer young = scene.consumer("young", scene.group + "-young");
        young.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumers.add(all.start(young, "young", "*"));
        Thread.sleep(1000);
        all.send(producer, 16, 24);
        Scene.await("24 + 8 + 16 + 24 messages", () -> all.count.get() >= 72);
        Thread.sleep(1000);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
    }

    private DefaultMQPushConsumer started(String instance, String tags) throws Exception {
        return start(scene.consumer(instance), instance, tags);
    }

    private DefaultMQPushConsumer start(DefaultMQPushConsumer consumer, String instance, String tags) throws Exception {
        consumer.subscribe(scene.topic, tags);
        consumer.registerMessageListener(listener(instance));
        consumer.start();
        return consumer;
    }

    private MessageListenerConcurrently listener(String instance) {
        return (messages, context) -> {
            messages.forEach(message -> {
                Scene.received(instance, message);
                seen.add(Scene.text(message));
                count.incrementAndGet();
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private DefaultMQPushConsumer startedOrderly(String instance) throws Exception {
        DefaultMQPushConsumer consumer = scene.consumer(instance);
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> {
                Scene.received(instance, message);
                seen.add(Scene.text(message));
            });
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private void send(DefaultMQProducer producer, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            producer.send(scene.message("m-" + i));
            Scene.sent("sync", "m-" + i, null);
        }
    }

    private void sendKeys(DefaultMQProducer producer, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            for (int key = 0; key < 8; key++) {
                String body = key + "-" + i;
                producer.send(scene.message(body), new SelectMessageQueueByHash(), key);
                Scene.sent("by key", body, null);
            }
        }
    }

    private void awaitSeen(int number) throws Exception {
        Scene.await(number + " messages, there are " + seen.size(), () -> seen.size() >= number);
    }
}
