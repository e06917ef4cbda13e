package interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that become visible when their sender says so, at once or when it is asked. */
final class Transactions {
    private static final String[] VERDICTS = {"commit", "rollback", "late-commit", "late-rollback", "twice"};

    private Transactions() {
    }

    /** What is told when a body is decided on first; the rest when the broker asks. */
    private static LocalTransactionState atOnce(String body) {
        return body.endsWith("-commit") && !body.endsWith("-late-commit") ? LocalTransactionState.COMMIT_MESSAGE
            : body.endsWith("-rollback") && !body.endsWith("-late-rollback") ? LocalTransactionState.ROLLBACK_MESSAGE
            : LocalTransactionState.UNKNOW;
    }

    static void run(Scene scene) throws Exception {
        AtomicInteger visible = new AtomicInteger();
        Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = Delaying.counting(scene, visible);
        TransactionListener listener = new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return atOnce(Scene.text(message));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = Scene.text(message);
                int times = checks.computeIfAbsent(body, each -> new AtomicInteger()).incrementAndGet();
                // The id that the message tells here is of its place; the other one is the transaction's.
                Out.event("checked", "body", body, "times", times, "id", message.getTransactionId(),
                    "topic", message.getTopic());
                if (body.endsWith("twice") && times == 1) {
                    return LocalTransactionState.UNKNOW;
                }
                return body.endsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.COMMIT_MESSAGE;
            }
        };
        DefaultMQProducer gone = producer(scene, "gone", listener);
        send(scene, gone, "t-orphan");
        gone.shutdown(); // another member of its group is asked
        DefaultMQProducer producer = producer(scene, "there", listener);
        for (int i = 0; i < 15; i++) {
            send(scene, producer, "t-" + i + "-" + VERDICTS[i % VERDICTS.length]);
        }
        Scene.await("10 messages", () -> visible.get() >= 10);
        Scene.await("checks of all that was left open", () -> checks.size() >= 10);
        Thread.sleep(5000); // what was rolled back must neither appear nor be asked for again
        consumer.shutdown();
        producer.shutdown();
    }

    private static void send(Scene scene, DefaultMQProducer producer, String body) throws Exception {
        Message message = scene.message(body);
        message.setKeys("k-" + body);
        TransactionSendResult result = producer.sendMessageInTransaction(message, null);
        Out.event("sent", "form", "transaction", "body", body, "id", result.getMsgId(), "status", result.getSendStatus(),
            "state", result.getLocalTransactionState());
    }

    private static DefaultMQProducer producer(Scene scene, String instance, TransactionListener listener)
        throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(scene.topic + "-producer", Keys.ofClients());
        producer.setNamesrvAddr(scene.namesrv);
        producer.setInstanceName(scene.topic + "-" + instance);
        producer.setTransactionListener(listener);
        producer.start();
        return producer;
    }

    /** A quarter each: committed, rolled back, both at once and when asked. */
    static final class Load extends Loading implements TransactionListener {
        private final AtomicInteger checks = new AtomicInteger();

        Load(Scene scene) {
            super(scene, false);
        }

        @Override
        DefaultMQProducer producer() throws Exception {
            return Transactions.producer(scene, "producer", this);
        }

        @Override
        boolean send(DefaultMQProducer producer, int key, String body) throws Exception {
            return producer.sendMessageInTransaction(scene.message(body), null).getSendStatus() == SendStatus.SEND_OK;
        }

        @Override
        boolean isGivenBack(MessageExt message, String body) {
            return false;
        }

        @Override
        boolean isWanted(String body) {
            return Integer.parseInt(body) % 2 == 0;
        }

        private LocalTransactionState verdict(Message message) {
            return isWanted(Scene.text(message)) ? LocalTransactionState.COMMIT_MESSAGE
                : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return Integer.parseInt(Scene.text(message)) % 4 < 2 ? verdict(message) : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checks.incrementAndGet();
            return verdict(message);
        }

        @Override
        Object[] more(DefaultMQProducer producer) {
            return new Object[] {"checks", checks.get()};
        }
    }
}
