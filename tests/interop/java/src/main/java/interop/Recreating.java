package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** The topic is deleted and created again from outside: while its consumers run, and while they are stopped. */
final class Recreating {
    private static final List<String> KINDS = List.of("push", "orderly", "broadcast");

    private final Scene scene;
    private final Map<String, Set<String>> seen = new ConcurrentHashMap<>();
    private final BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Recreating(Scene scene) {
        this.scene = scene;
        KINDS.forEach(kind -> seen.put(kind, ConcurrentHashMap.newKeySet()));
    }

    static void run(Scene scene) throws Exception {
        Recreating all = new Recreating(scene);
        DefaultMQProducer producer = scene.producer();
        List<DefaultMQPushConsumer> consumers = all.start();
        all.send(producer, 0, 400);
        all.recreated();
        all.send(producer, 400, 420);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        all.recreated();
        all.sendOnly(producer, 420, 720);
        consumers = all.start();
        all.awaitSeen(720);
        Thread.sleep(1000);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
    }

    private List<DefaultMQPushConsumer> start() throws Exception {
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (String kind : KINDS) {
            DefaultMQPushConsumer consumer = scene.consumer(kind, scene.group + "-" + kind);
            if (kind.equals("broadcast")) {
                Scene.broadcasting(consumer);
            }
            consumer.subscribe(scene.topic, "*");
            if (kind.equals("orderly")) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    messages.forEach(message -> note(kind, message));
                    return ConsumeOrderlyStatus.SUCCESS;
                });
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    messages.forEach(message -> note(kind, message));
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
            }
            consumer.start();
            consumers.add(consumer);
        }
        return consumers;
    }

    private void note(String kind, MessageExt message) {
        Scene.received(kind, message);
        seen.get(kind).add(Scene.text(message));
    }

    /** Waits until the topic was deleted and created again. */
    private void recreated() throws Exception {
        Out.event("consumed");
        lines.readLine();
    }

    private void send(DefaultMQProducer producer, int from, int to) throws Exception {
        sendOnly(producer, from, to);
        awaitSeen(to);
    }

    private void sendOnly(DefaultMQProducer producer, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            producer.send(scene.message("m-" + i));
            Scene.sent("sync", "m-" + i, null);
        }
    }

    private void awaitSeen(int number) throws Exception {
        Scene.await(number + " messages for each", () -> seen.values().stream().allMatch(got -> got.size() >= number));
    }
}
