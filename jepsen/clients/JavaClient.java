import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** RocketMQ's own client as a member of a group and as a producer; what its lines mean says jepsen/clients. */
final class JavaClient {
    /** Whatever others make of System.out meanwhile. */
    private static final PrintStream LINES = System.out;

    private JavaClient() {
    }

    private static synchronized void tell(Map<String, Object> told) {
        LINES.println(RemotingSerializable.toJson(told, false));
        LINES.flush();
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        String topic = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer(arguments[2] + "_senders");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String own = message.getUserProperty("jepsen");
                tell(Map.of(
                    "event", "received",
                    "queue", message.getQueueId(),
                    "offset", message.getQueueOffset(),
                    "body", Base64.getEncoder().encodeToString(message.getBody()),
                    "tag", String.valueOf(message.getTags()),
                    "property", String.valueOf(own)));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        tell(Map.of("event", "ready"));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            send(producer, topic, RemotingSerializable.fromJson(line, Map.class));
        }
        consumer.shutdown();
        producer.shutdown();
    }

    private static void send(DefaultMQProducer producer, String topic, Map<?, ?> order) throws InterruptedException {
        String value = (String) order.get("value");
        byte[] body = Base64.getDecoder().decode((String) order.get("body"));
        Message message = new Message(topic, (String) order.get("tag"), value, body);
        message.putUserProperty("jepsen", (String) order.get("property"));
        try {
            SendResult result = producer.send(message);
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                tell(Map.of(
                    "event", "sent",
                    "value", value,
                    "queue", result.getMessageQueue().getQueueId(),
                    "offset", result.getQueueOffset()));
            } else {
                tell(Map.of("event", "not-sent", "value", value, "error", String.valueOf(result.getSendStatus())));
            }
        } catch (InterruptedException interrupted) {
            throw interrupted;
        } catch (Exception error) {
            // It may have been sent several times, and only the last failure is told: nobody knows.
            tell(Map.of("event", "not-sent", "value", value, "error", String.valueOf(error.getMessage())));
        }
    }
}
