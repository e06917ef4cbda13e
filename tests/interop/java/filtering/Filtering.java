import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A consumer that filters with a class of Java, and prints the bodies that it gets until its standard input ends.
 *
 * <p>Arguments: name server, consumer group, topic, name of the class, file with its source.
 */
final class Filtering {
    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[1]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPollNameServerInterval(1000);
        consumer.subscribe(arguments[2], arguments[3], Files.readString(Path.of(arguments[4])));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                System.out.println(new String(each.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (System.in.read() >= 0) {
        }
        consumer.shutdown();
    }
}
