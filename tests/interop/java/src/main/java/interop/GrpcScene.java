package interop;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;

import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;

/** The topic and the group of one scenario, clients for them, and what they have received. */
final class GrpcScene {
    static final int PATIENCE_MS = 100_000;
    /** The shortest time that the proxy allows with a receive. */
    static final Duration INVISIBLE = Duration.ofSeconds(10);

    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    final String topic;
    final String group;
    /** The bodies of all that came, in this order. */
    final List<String> received = new CopyOnWriteArrayList<>();

    private final ClientConfiguration configuration;

    /** A condition that may be waited for. */
    interface Condition {
        boolean holds() throws Exception;
    }

    GrpcScene(String address, String name) {
        topic = name;
        group = name + "-group";
        var builder = ClientConfiguration.newBuilder().setEndpoints(address).setRequestTimeout(Duration.ofSeconds(10))
            .enableSsl("on".equals(System.getenv("INTEROP_GRPC_TLS")));
        String accessKey = System.getenv("INTEROP_ACCESS_KEY");
        if (accessKey != null) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(accessKey, System.getenv("INTEROP_SECRET_KEY")));
        }
        configuration = builder.build();
    }

    static FilterExpression sql(String expression) {
        return new FilterExpression(expression, FilterExpressionType.SQL92);
    }

    Producer producer() throws Exception {
        return producer(null);
    }

    Producer producer(TransactionChecker checker) throws Exception {
        var builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic);
        return (checker == null ? builder : builder.setTransactionChecker(checker)).build();
    }

    SimpleConsumer simple() throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setAwaitDuration(Duration.ofSeconds(2)).build();
    }

    PushConsumer push(String by, Predicate<String> fails) throws Exception {
        return push(by, group, FilterExpression.SUB_ALL, fails);
    }

    PushConsumer push(String by, String groupOfIt, FilterExpression expression, Predicate<String> fails)
        throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(groupOfIt)
            .setSubscriptionExpressions(Map.of(topic, expression))
            .setMessageListener(message ->
                fails.test(note(by, message)) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS)
            .build();
    }

    MessageBuilder message(String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Reports a message that came; returns its body. */
    String note(String by, MessageView message) {
        String body = text(message);
        Out.event("received", "by", by, "body", body, "id", message.getMessageId().toString(),
            "tags", message.getTag().orElse(null), "keys", new TreeSet<>(message.getKeys()),
            "properties", message.getProperties(), "topic", message.getTopic(),
            "group", message.getMessageGroup().orElse(null), "times", message.getDeliveryAttempt() - 1,
            "at", System.currentTimeMillis());
        received.add(body);
        return body;
    }

    static void await(String what, Condition condition) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > end) {
                throw new TimeoutException("waited " + PATIENCE_MS / 1000 + " s for " + what);
            }
            Thread.sleep(20);
        }
    }

    void awaitReceived(int number) throws Exception {
        await(number + " deliveries", () -> received.size() >= number);
    }
}
