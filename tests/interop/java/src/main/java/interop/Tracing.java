package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Clients that write down what became of their messages, and the tool that reads it. */
final class Tracing {
    private static final long PATIENCE_MS = 40_000;

    private Tracing() {
    }

    static DefaultMQProducer producer(Scene scene) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(scene.topic + "-producer", Keys.ofClients(), true, null);
        producer.setNamesrvAddr(scene.namesrv);
        producer.setInstanceName(scene.topic + "-producer");
        producer.start();
        return producer;
    }

    static DefaultMQPushConsumer consumer(Scene scene, String instance) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(scene.group, Keys.ofClients(),
            new AllocateMessageQueueAveragely(), true, null);
        consumer.setNamesrvAddr(scene.namesrv);
        consumer.setInstanceName(scene.topic + "-" + instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    /** Three messages; the one in the middle fails once. */
    static void run(Scene scene) throws Exception {
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer(scene, "a");
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            Scene.received("a", message);
            if (message.getReconsumeTimes() == 0 && Scene.text(message).equals("m-1")) {
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            count.incrementAndGet();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = producer(scene);
        Map<String, String> ids = new TreeMap<>();
        for (int i = 0; i < 3; i++) {
            Message message = scene.message("m-" + i);
            message.setKeys("k-" + i);
            SendResult result = producer.send(message);
            ids.put("m-" + i, result.getMsgId());
            Out.event("sent", "form", "sync", "body", "m-" + i, "id", result.getMsgId());
        }
        Scene.await("3 messages", () -> count.get() >= 3);
        for (Map.Entry<String, String> each : ids.entrySet()) {
            Out.event("trace", "body", each.getKey(), "lines", story(scene, each.getValue(), each.getKey().equals("m-1") ? 2 : 1));
        }
        consumer.shutdown();
        producer.shutdown();
    }

    /** What the tool prints of a message, once it was sent and that often consumed; or whatever there is at last. */
    private static List<String> story(Scene scene, String id, int consumed) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            List<String> lines = new ArrayList<>();
            for (String line : Tool.output("queryMsgTraceById", "-i", id, "-n", scene.namesrv).split("\n")) {
                if (line.startsWith("Pub") || line.startsWith("Sub") || line.contains("xception")) {
                    lines.add(line.trim().replaceAll("\\s+", " "));
                }
            }
            long subscriptions = lines.stream().filter(line -> line.startsWith("Sub")).count();
            if (lines.size() > subscriptions && subscriptions >= consumed || System.currentTimeMillis() > end) {
                return lines;
            }
            Thread.sleep(500);
        }
    }

    /** Traced like everything else; at the end one more message is sent and its story looked up. */
    static final class Load extends Loading {
        Load(Scene scene) {
            super(scene, false);
        }

        @Override
        DefaultMQProducer producer() throws Exception {
            return Tracing.producer(scene);
        }

        @Override
        DefaultMQPushConsumer consumer(String instance) {
            return Tracing.consumer(scene, instance);
        }

        @Override
        Object[] more(DefaultMQProducer producer) throws Exception {
            SendResult last = producer.send(scene.message("-1"));
            return new Object[] {"story", story(scene, last.getMsgId(), 1)};
        }
    }
}
