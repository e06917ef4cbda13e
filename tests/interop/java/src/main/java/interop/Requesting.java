package interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

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
        CountDownLatch pending = new CountDownLatch(5);
        for (int i = 0; i < 5; i++) {
            String body = "async-" + i;
            producer.request(request(scene, body, "Asked"), new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    answered(body, message);
                    pending.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    Out.event("unanswered", "body", body, "why", error.toString());
                    pending.countDown();
                }
            }, TTL_MS);
        }
        pending.await(60, TimeUnit.SECONDS);
        try {
            answered("nobody", ask(producer, request(scene, "nobody", "NotAsked"), 2_000));
        } catch (RequestTimeoutException error) {
            Out.event("unanswered", "body", "nobody", "why", error.toString());
        }
        consumer.shutdown();
        producer.shutdown();
        answers.shutdown();
    }

    /**
     * Waits for the answer. From 5.3.1 on the library's own way to wait ends as soon as the request is sent (its issue
     * 9292), so that there it is asked by callback.
     */
    private static Message ask(DefaultMQProducer producer, Message request, long ttlMs) throws Exception {
        if (MQVersion.CURRENT_VERSION < MQVersion.Version.V5_0_0.ordinal()) {
            return producer.request(request, ttlMs);
        }
        CompletableFuture<Message> answer = new CompletableFuture<>();
        producer.request(request, new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                answer.complete(message);
            }

            @Override
            public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        }, ttlMs);
        try {
            return answer.get();
        } catch (ExecutionException error) {
            throw (Exception) error.getCause();
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
