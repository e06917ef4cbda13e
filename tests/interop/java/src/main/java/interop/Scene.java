package interop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What a scenario works with: the cluster, and a name of its own for its topic (there already) and its groups. */
final class Scene {
    static final int QUEUES = 4;
    private static final long PATIENCE_MS = 60_000;
    /** Several programs and a cluster on a small machine: the first request of a young virtual machine takes its time. */
    static final int SLOW_MS = 10_000;

    // Names of instances begin with it as well: replies go by them, and several programs may run on this machine.
    final String namesrv;
    final String topic;
    final String group;

    Scene(String namesrv, String name) {
        this.namesrv = namesrv;
        this.topic = name;
        this.group = name + "-group";
    }

    DefaultMQProducer producer() throws Exception {
        return producer("producer");
    }

    DefaultMQProducer producer(String instance) throws Exception {
        DefaultMQProducer producer = unstartedProducer(instance);
        producer.setSendMsgTimeout(SLOW_MS);
        producer.setMqClientApiTimeout(SLOW_MS);
        producer.start();
        return producer;
    }

    /** With default settings. */
    DefaultMQProducer unstartedProducer(String instance) {
        DefaultMQProducer producer = new DefaultMQProducer(topic + "-" + instance, Keys.ofClients());
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(topic + "-" + instance);
        return producer;
    }

    /** A consumer that is not started, of the scenario's own group, reading from the first message on. */
    DefaultMQPushConsumer consumer(String instance) {
        return consumer(instance, group);
    }

    DefaultMQPushConsumer consumer(String instance, String groupOfIt) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(groupOfIt, Keys.ofClients(),
            new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(topic + "-" + instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMqClientApiTimeout(SLOW_MS);
        return consumer;
    }

    DefaultMQAdminExt admin() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Keys.ofAdministrators(), 10_000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName(topic + "-admin");
        admin.start();
        return admin;
    }

    Message message(String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static void broadcasting(DefaultMQPushConsumer consumer) {
        // The enumeration lives in different packages in 4.9 and 5.
        var model = consumer.getMessageModel();
        consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), "BROADCASTING"));
    }

    /** How many queues of the topic a consumer reads now. */
    long queues(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter((MessageQueue queue) -> queue.getTopic().equals(topic)).count();
    }

    /** Waits; raises TimeoutException after a minute. */
    static void await(String what, BooleanSupplier condition) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > end) {
                throw new TimeoutException("waited " + PATIENCE_MS / 1000 + " s for " + what);
            }
            Thread.sleep(20);
        }
    }

    static void received(String instance, MessageExt message) {
        Out.event("received", "by", instance, "body", text(message), "id", message.getMsgId(),
            "queue", message.getQueueId(), "offset", message.getQueueOffset(), "tags", message.getTags(),
            "times", message.getReconsumeTimes(), "topic", message.getTopic(), "at", System.currentTimeMillis());
    }

    static void sent(String form, String body, Map<String, ?> more) {
        Out.event("sent", "form", form, "body", body, "more", more);
    }
}
