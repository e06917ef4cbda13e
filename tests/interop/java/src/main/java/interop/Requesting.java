package interop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests that consumers answer. */
final class Requesting {
    private static final long TTL_MS = 10_000;
    private static final long LOAD_TTL_MS = 3_000;

    private Requesting() {
    }

    static void run(Scene scene) throws Exception {
        DefaultMQProducer answers = scene.producer("answering");
        DefaultMQPushConsumer consumer = scene.consumer("a");
        consumer.subscribe(scene.topic, "Asked");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Scene.received("a", message);
                try {
                    Out.event("replied", "status", answers.send(reply(message)).getSendStatus());
                } catch (Exception error) {
                    Out.event("unreplied", "why", error.toString());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 5; i++) {
            Message request = request(scene, "sync-" + i, "Asked");
            answered("sync-" + i, ask(producer, request, TTL_MS));
        }
        Map<String, Answer> pending = new TreeMap<>();
        for (int i = 0; i < 5; i++) {
            Answer answer = new Answer();
            pending.put("async-" + i, answer);
            producer.request(request(scene, "async-" + i, "Asked"), answer, TTL_MS);
        }
        for (Map.Entry<String, Answer> each : pending.entrySet()) {
            answered(each.getKey(), each.getValue().get(TTL_MS, TimeUnit.MILLISECONDS));
        }
        try {
            answered("nobody", ask(producer, request(scene, "nobody", "NotAsked"), 2_000));
        } catch (RequestTimeoutException | TimeoutException error) {
            Out.event("unanswered", "body", "nobody", "why", error.toString());
        }
        consumer.shutdown();
        producer.shutdown();
        answers.shutdown();
    }

    /** By the library's own way to wait, where it works. */
    private static Message ask(DefaultMQProducer producer, Message request, long ttlMs) throws Exception {
        if (MQVersion.CURRENT_VERSION < MQVersion.Version.V5_0_0.ordinal()) {
            return producer.request(request, ttlMs);
        }
        Answer answer = new Answer();
        producer.request(request, answer, ttlMs);
        return answer.get(ttlMs, TimeUnit.MILLISECONDS);
    }

    /**
     * From 5.3.1 on the library takes a request for answered as soon as it is sent (its issue 9292): who waits gets an
     * error, and callbacks are called with nothing, once more with the answer, but not when time is up.
     */
    private static final class Answer extends CompletableFuture<Message> implements RequestCallback {
        @Override
        public void onSuccess(Message message) {
            if (message != null) {
                complete(message);
            }
        }

        @Override
        public void onException(Throwable error) {
            completeExceptionally(error);
        }
    }

    private static Message reply(Message request) throws Exception {
        byte[] body = ("re: " + Scene.text(request)).getBytes(StandardCharsets.UTF_8);
        return MessageUtil.createReplyMessage(request, body);
    }

    private static Message request(Scene scene, String body, String tag) {
        Out.event("sent", "form", tag, "body", body);
        return new Message(scene.topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    private static void answered(String body, Message answer) {
        Out.event("answered", "body", body, "answer", Scene.text(answer));
    }

    /** Each number asked for is acknowledged when its answer is here. */
    static final class Load extends Loading {
        private DefaultMQProducer answers;

        Load(Scene scene) {
            super(scene, false);
        }

        @Override
        DefaultMQPushConsumer consumer(String instance) throws Exception {
            answers = scene.unstartedProducer("answering");
            answers.start();
            return super.consumer(instance);
        }

        @Override
        boolean send(DefaultMQProducer producer, int key, String body) throws Exception {
            Message answer = ask(producer, scene.message(body), LOAD_TTL_MS);
            return Scene.text(answer).equals("re: " + body);
        }

        /** Not given back but answered: nobody waits any more for an answer that cannot be sent now. */
        @Override
        boolean isGivenBack(MessageExt message, String body) {
            try {
                answers.send(reply(message));
            } catch (Exception error) {
                error.printStackTrace();
            }
            return false;
        }
    }
}
