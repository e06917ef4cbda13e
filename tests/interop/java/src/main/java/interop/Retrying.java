package interop;

import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** Messages whose bodies begin with "bad" fail each time; after two more attempts they are dead letters. */
final class Retrying {
    private static final int ATTEMPTS = 3;

    private Retrying() {
    }

    static void concurrent(Scene scene) throws Exception {
        AtomicInteger failures = new AtomicInteger();
        DefaultMQPushConsumer consumer = scene.consumer("a");
        consumer.setMaxReconsumeTimes(ATTEMPTS - 1);
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            Scene.received("a", messages.get(0));
            if (Scene.text(messages.get(0)).startsWith("bad")) {
                failures.incrementAndGet();
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        run(scene, consumer, failures);
    }

    static void orderly(Scene scene) throws Exception {
        AtomicInteger failures = new AtomicInteger();
        DefaultMQPushConsumer consumer = scene.consumer("a");
        consumer.setMaxReconsumeTimes(ATTEMPTS - 1);
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            Scene.received("a", messages.get(0));
            if (Scene.text(messages.get(0)).startsWith("bad")) {
                failures.incrementAndGet();
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        run(scene, consumer, failures);
    }

    private static void run(Scene scene, DefaultMQPushConsumer consumer, AtomicInteger failures) throws Exception {
        DefaultMQProducer producer = scene.producer();
        for (String body : new String[] {"good-0", "bad-0", "good-1", "bad-1", "good-2"}) {
            producer.send(scene.message(body));
            Scene.sent("sync", body, null);
        }
        consumer.start();
        Scene.await("two messages to fail three times", () -> failures.get() >= 2 * ATTEMPTS);
        // The last failure is still to be told to the broker.
        Thread.sleep(3000);
        consumer.shutdown();
        producer.shutdown();
    }
}
