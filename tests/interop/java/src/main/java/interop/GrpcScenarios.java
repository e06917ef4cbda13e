package interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** All scenarios but those under load. */
final class GrpcScenarios {
    private GrpcScenarios() {
    }

    private static void sent(String body, SendReceipt receipt, Object... more) {
        List<Object> fields = new ArrayList<>(List.of("body", body, "id", receipt.getMessageId().toString()));
        Collections.addAll(fields, more);
        Out.event("sent", fields.toArray());
    }

    /** One receive; what it fails with is told. */
    private static List<MessageView> receive(SimpleConsumer consumer) throws Exception {
        try {
            return consumer.receive(16, GrpcScene.INVISIBLE);
        } catch (ClientException error) {
            Out.event("retried", "why", String.valueOf(error.getMessage()));
            Thread.sleep(500);
            return List.of();
        }
    }

    static void send(GrpcScene scene) throws Exception {
        Producer producer = scene.producer();
        Map<String, CompletableFuture<SendReceipt>> pending = new HashMap<>();
        for (String form : List.of("sync", "async")) {
            for (int number = 0; number < 10; number++) {
                String body = form + "-" + number;
                var message = scene.message(body).setTag("tag").setKeys("key-" + number)
                    .addProperty("colour", "gr\u00fcn").build();
                if (form.equals("sync")) {
                    sent(body, producer.send(message), "form", form);
                } else {
                    pending.put(body, producer.sendAsync(message));
                }
            }
        }
        for (var each : pending.entrySet()) {
            sent(each.getKey(), each.getValue().get(), "form", "async");
        }
        SimpleConsumer consumer = scene.simple();
        GrpcScene.await("20 messages", () -> {
            for (MessageView message : receive(consumer)) {
                scene.note("simple", message);
                consumer.ack(message);
            }
            return scene.received.size() >= 20;
        });
        consumer.close();
        producer.close();
    }

    /** Of 20 messages one is left alone, one is given back, one is kept for longer than it was asked for. */
    static void simple(GrpcScene scene) throws Exception {
        Producer producer = scene.producer();
        for (int number = 0; number < 20; number++) {
            String body = (number == 0 ? "left-" : number == 1 ? "back-" : number == 2 ? "kept-" : "good-") + number;
            sent(body, producer.send(scene.message(body).build()));
        }
        SimpleConsumer consumer = scene.simple();
        Map<MessageView, Long> kept = new HashMap<>();
        GrpcScene.await("each message", () -> {
            for (MessageView message : receive(consumer)) {
                String body = scene.note("simple", message);
                boolean first = Collections.frequency(scene.received, body) == 1;
                if (first && body.startsWith("back")) {
                    consumer.changeInvisibleDuration(message, GrpcScene.INVISIBLE.dividedBy(2));
                } else if (first && body.startsWith("kept")) {
                    consumer.changeInvisibleDuration(message, GrpcScene.INVISIBLE.multipliedBy(3));
                    kept.put(message, System.currentTimeMillis() + 2 * GrpcScene.INVISIBLE.toMillis());
                } else if (!first || body.startsWith("good")) {
                    consumer.ack(message);
                }
            }
            for (var each : List.copyOf(kept.entrySet())) {
                if (each.getValue() <= System.currentTimeMillis()) {
                    consumer.ack(each.getKey());
                    Out.event("acknowledged", "body", GrpcScene.text(each.getKey()));
                    kept.remove(each.getKey());
                }
            }
            return scene.received.size() >= 22 && kept.isEmpty();
        });
        // What was acknowledged late must not come again after its longer time, either.
        long end = System.currentTimeMillis() + GrpcScene.INVISIBLE.toMillis() * 3 / 2;
        GrpcScene.await("the end", () -> {
            receive(consumer).forEach(message -> scene.note("simple", message));
            return System.currentTimeMillis() >= end;
        });
        consumer.close();
        producer.close();
    }

    /** Two share 60 messages, of which some fail always; they are dead after two attempts. */
    static void push(GrpcScene scene) throws Exception {
        var a = scene.push("a", body -> body.startsWith("bad"));
        var b = scene.push("b", body -> body.startsWith("bad"));
        Producer producer = scene.producer();
        for (int number = 0; number < 60; number++) {
            String body = (number % 20 == 0 ? "bad-" : "good-") + number;
            sent(body, producer.send(scene.message(body).build()));
        }
        scene.awaitReceived(63);
        Out.event("delivered");
        System.in.read(); // told when the dead letters are there
        a.close();
        b.close();
        producer.close();
    }

    static void fifo(GrpcScene scene) throws Exception {
        AtomicBoolean failed = new AtomicBoolean();
        Producer producer = scene.producer();
        for (int number = 0; number < 80; number++) {
            String body = number % 8 + "-" + number / 8;
            sent(body, producer.send(scene.message(body).setMessageGroup("group-" + number % 8).build()));
        }
        var consumer = scene.push("fifo", body -> body.equals("3-4") && failed.compareAndSet(false, true));
        scene.awaitReceived(81);
        Thread.sleep(2000); // a message that is delivered once too often comes by then
        consumer.close();
        producer.close();
    }

    static void filter(GrpcScene scene) throws Exception {
        var tags = scene.push("tags", scene.group, new FilterExpression("AaTag || TagC"), body -> false);
        var sql = scene.push("sql", scene.topic + "-sql", GrpcScene.sql("number > 10 AND colour = 'rot'"),
            body -> false);
        Producer producer = scene.producer();
        String[] names = {"AaTag", "BBTag", "TagC"}; // the first two have the same hash code
        for (int number = 0; number < 30; number++) {
            String body = "m-" + number + "-" + names[number % 3];
            sent(body, producer.send(scene.message(body).setTag(names[number % 3])
                .addProperty("number", String.valueOf(number))
                .addProperty("colour", number % 2 == 0 ? "rot" : "blau").build()));
        }
        scene.awaitReceived(29);
        Thread.sleep(2000); // what passes a filter wrongly comes by then
        tags.close();
        sql.close();
        producer.close();
    }

    static void delay(GrpcScene scene) throws Exception {
        var consumer = scene.push("delay", body -> false);
        Producer producer = scene.producer();
        for (int number = 0; number < 6; number++) {
            long due = System.currentTimeMillis() + 1000 + 600L * number;
            String body = "d-" + number;
            sent(body, producer.send(scene.message(body).setDeliveryTimestamp(due).build()), "due", due,
                "latest", due + 1000);
        }
        scene.awaitReceived(6);
        Thread.sleep(1000); // a message that is delivered twice comes by then
        consumer.close();
        producer.close();
    }

    /** Six messages due in eight seconds, of which the even ones are called back. */
    static void recall(GrpcScene scene) throws Exception {
        var consumer = scene.push("recall", body -> false);
        Producer producer = scene.producer();
        List<String> handles = new ArrayList<>();
        for (int number = 0; number < 6; number++) {
            SendReceipt receipt = producer.send(
                scene.message("r-" + number).setDeliveryTimestamp(System.currentTimeMillis() + 8000).build());
            sent("r-" + number, receipt);
            handles.add(receipt.getRecallHandle());
        }
        for (int number = 0; number < 6; number += 2) {
            Out.event("recalled", "body", "r-" + number, "id",
                producer.recallMessage(scene.topic, handles.get(number)).getMessageId().toString());
        }
        scene.awaitReceived(3);
        Thread.sleep(5000); // a recalled message that is delivered all the same comes by then
        try {
            Out.event("late", "value", producer.recallMessage(scene.topic, handles.get(1)).getMessageId().toString());
        } catch (ClientException error) {
            Out.event("late", "why", String.valueOf(error.getMessage()));
        }
        consumer.close();
        producer.close();
    }

    /** Two each are committed, rolled back, and left to be asked for. */
    static void transactions(GrpcScene scene) throws Exception {
        var consumer = scene.push("transactions", body -> false);
        Producer producer = scene.producer(message -> {
            String body = GrpcScene.text(message);
            Out.event("checked", "body", body, "id", message.getMessageId().toString(), "topic", message.getTopic());
            return body.endsWith("commit") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        });
        for (int number = 0; number < 8; number++) {
            String verdict = List.of("commit", "rollback", "late-commit", "late-rollback").get(number % 4);
            String body = "t-" + number + "-" + verdict;
            Transaction transaction = producer.beginTransaction();
            sent(body, producer.send(scene.message(body).build(), transaction));
            if (verdict.equals("commit")) {
                transaction.commit();
            } else if (verdict.equals("rollback")) {
                transaction.rollback();
            }
        }
        scene.awaitReceived(4);
        Thread.sleep(8000); // a message that was rolled back would come by then
        consumer.close();
        producer.close();
    }
}
