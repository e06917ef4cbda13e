package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way to send a message. */
final class Sending {
    private static final AtomicInteger SENT = new AtomicInteger();

    private Sending() {
    }

    static void run(Scene scene) throws Exception {
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 3; i++) {
            Message message = decorated(scene, "sync-" + i);
            report("sync", message, producer.send(message));
        }
        async(scene, producer);
        for (int i = 0; i < 3; i++) {
            Message message = decorated(scene, "one-way-" + i);
            producer.sendOneway(message);
            report("one-way", message, null);
        }
        batch(scene, producer);

        Message selected = scene.message("selected");
        report("selected", selected, producer.send(selected, (queues, sent, number) -> queues.get((Integer) number), 2));
        Message direct = scene.message("direct");
        MessageQueue queue = producer.fetchPublishMessageQueues(scene.topic).get(1);
        report("direct", direct, producer.send(direct, queue));
        for (int i = 0; i < 3; i++) {
            Message message = scene.message("sharded-" + i);
            MessageAccessor.putProperty(message, "__SHARDINGKEY", "order-7");
            report("sharded", message, producer.send(message, new SelectMessageQueueByHash(), "order-7"));
        }
        Message delayed = scene.message("delayed");
        delayed.setDelayTimeLevel(1);
        report("delayed", delayed, producer.send(delayed));

        // Random bytes would grow by compression.
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        byte[] noise = new byte[producer.getMaxMessageSize()];
        new Random(1).nextBytes(noise);
        Message largest = new Message(scene.topic, noise);
        report("largest", largest, producer.send(largest, 30_000));
        producer.shutdown();

        for (String way : List.of("ZLIB", "LZ4", "ZSTD")) {
            System.setProperty("rocketmq.message.compressType", way);
            DefaultMQProducer compressing = scene.producer("compressing-" + way);
            Message message = scene.message((way + " grüßt 😀 ").repeat(2000));
            report("compressed", message, compressing.send(message));
            compressing.shutdown();
        }
        readBack(scene);
    }

    /** What another program of the same library makes of it all. */
    private static void readBack(Scene scene) throws Exception {
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = scene.consumer("reader");
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Out.event("read", "crc", crc(message), "id", message.getMsgId(), "queue", message.getQueueId(),
                    "offset", message.getQueueOffset(), "tags", message.getTags(), "keys", message.getKeys(),
                    "colour", message.getProperty("colour"), "face", message.getProperty("face"));
                count.incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Scene.await("all that was sent", () -> count.get() >= SENT.get());
        consumer.shutdown();
    }

    private static long crc(Message message) {
        CRC32 crc = new CRC32();
        crc.update(message.getBody());
        return crc.getValue();
    }

    private static void async(Scene scene, DefaultMQProducer producer) throws Exception {
        CountDownLatch pending = new CountDownLatch(10);
        for (int i = 0; i < 10; i++) {
            Message message = decorated(scene, "async-" + i);
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    report("async", message, result);
                    pending.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    Out.event("unsent", "form", "async", "why", error.toString());
                    pending.countDown();
                }
            });
        }
        pending.await();
    }

    private static void batch(Scene scene, DefaultMQProducer producer) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            messages.add(decorated(scene, "batch-" + i));
        }
        SendResult result = producer.send(messages);
        String[] ids = result.getMsgId().split(",");
        String[] offsetIds = result.getOffsetMsgId().split(",");
        for (int i = 0; i < messages.size(); i++) {
            report("batch", messages.get(i), ids[i], offsetIds[i], result, result.getQueueOffset() + i);
        }
    }

    private static Message decorated(Scene scene, String body) {
        Message message = new Message(scene.topic, "TagA", "k-" + body + " schlüssel", body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("colour", "grün");
        message.putUserProperty("face", "😀 \"quoted\" {} \\ \t");
        return message;
    }

    private static void report(String form, Message message, SendResult result) {
        report(form, message, result == null ? null : result.getMsgId(),
            result == null ? null : result.getOffsetMsgId(), result, result == null ? -1 : result.getQueueOffset());
    }

    private static void report(String form, Message message, String id, String offsetId, SendResult result, long offset) {
        SENT.incrementAndGet();
        Out.event("sent", "form", form, "crc", crc(message), "length", message.getBody().length,
            "id", id, "offset_id", offsetId, "status", result == null ? null : result.getSendStatus(),
            "queue", result == null ? null : result.getMessageQueue().getQueueId(), "offset", offset,
            "tags", message.getTags(), "keys", message.getKeys(), "colour", message.getProperty("colour"),
            "face", message.getProperty("face"), "at", System.currentTimeMillis());
    }
}
