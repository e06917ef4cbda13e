package interop;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What operators and consoles do: the admin client's calls. */
final class Admins {
    /** One call; its outcome is reported. */
    private interface Call {
        Object run() throws Exception;
    }

    private Admins() {
    }

    /** A running consumer is sent back to a point in time and reads on from there. */
    static void reset(Scene scene) throws Exception {
        DefaultMQProducer producer = scene.producer();
        send(scene, producer, 0, 20);
        Thread.sleep(50);
        long time = System.currentTimeMillis();
        Thread.sleep(50);
        send(scene, producer, 20, 40);
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = counting(scene, count);
        Scene.await("40 messages", () -> count.get() >= 40);
        // What it has read is stored every five seconds; a reset goes back from there.
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        Thread.sleep(1000);
        DefaultMQAdminExt admin = scene.admin();
        Map<Integer, Long> offsets = new TreeMap<>();
        admin.resetOffsetByTimestamp(scene.topic, scene.group, time, true)
            .forEach((queue, offset) -> offsets.put(queue.getQueueId(), offset));
        Out.event("reset", "offsets", offsets);
        Scene.await("20 messages again", () -> count.get() >= 60);
        Thread.sleep(2000);
        consumer.shutdown();
        admin.shutdown();
        producer.shutdown();
    }

    static void lookup(Scene scene) throws Exception {
        DefaultMQProducer producer = scene.producer();
        long begin = System.currentTimeMillis() - 1000;
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            Message message = scene.message("m-" + i);
            message.setKeys("k-" + i + " every");
            results.add(producer.send(message));
        }
        DefaultMQAdminExt admin = scene.admin();
        long end = System.currentTimeMillis() + 1000;
        call("by key", () -> bodies(admin.queryMessage(scene.topic, "k-7", 32, begin, end)));
        call("by shared key", () -> bodies(admin.queryMessage(scene.topic, "every", 64, begin, end)));
        call("by key, other time", () -> {
            try {
                return bodies(admin.queryMessage(scene.topic, "k-7", 32, begin - 100_000, begin - 50_000));
            } catch (MQClientException error) {
                return error.getResponseCode(); // so does the client tell that there is none
            }
        });
        call("by unique id", () -> Scene.text(admin.viewMessage(scene.topic, results.get(7).getMsgId())));
        call("by unique id, producer", () -> Scene.text(producer.viewMessage(scene.topic, results.get(8).getMsgId())));
        call("by offset id", () -> {
            MessageExt found = admin.viewMessage(scene.topic, results.get(9).getOffsetMsgId());
            return Scene.text(found) + " " + (found.getQueueOffset() == results.get(9).getQueueOffset());
        });
        var queue = results.get(0).getMessageQueue();
        call("earliest", () -> {
            long time = admin.earliestMsgStoreTime(queue);
            return time >= begin && time <= end;
        });
        call("offsets", () -> admin.minOffset(queue) + " " + admin.maxOffset(queue));
        call("offset by time", () -> admin.searchOffset(queue, begin) + " " + admin.searchOffset(queue, end));
        admin.shutdown();
        producer.shutdown();
    }

    static void calls(Scene scene) throws Exception {
        DefaultMQAdminExt admin = scene.admin();
        var cluster = admin.examineBrokerClusterInfo();
        call("clusterInfo", () -> cluster.getBrokerAddrTable().toString());
        var broker = cluster.getBrokerAddrTable().values().iterator().next();
        String leader = broker.selectBrokerAddr();
        String fresh = scene.topic + "-made";
        String group = scene.group + "-made";
        call("createTopic", () -> {
            admin.createAndUpdateTopicConfig(leader, new TopicConfig(fresh, 3, 2, 6));
            Thread.sleep(500); // the broker tells the name servers
            return "";
        });
        call("route", () -> {
            var queues = admin.examineTopicRouteInfo(fresh).getQueueDatas().get(0);
            return queues.getReadQueueNums() + " " + queues.getWriteQueueNums() + " " + queues.getPerm();
        });
        call("topicConfig", () -> admin.examineTopicConfig(leader, fresh).getReadQueueNums());
        call("topicList", () -> admin.fetchAllTopicList().getTopicList().contains(fresh));
        call("topicsOfCluster", () -> admin.fetchTopicsByCLuster(broker.getCluster()).getTopicList().contains(fresh));
        call("allTopicConfig", () -> admin.getAllTopicConfig(leader, 5000).getTopicConfigTable().containsKey(fresh));
        call("createGroup", () -> {
            var config = admin.getAllSubscriptionGroup(leader, 5000).getClass();
            Tool.output("updateSubGroup", "-n", scene.namesrv, "-b", leader, "-g", group, "-r", "5");
            return config.getSimpleName();
        });
        call("group", () -> admin.examineSubscriptionGroupConfig(leader, group).getRetryMaxTimes());
        call("allGroups", () ->
            admin.getAllSubscriptionGroup(leader, 5000).getSubscriptionGroupTable().containsKey(group));

        DefaultMQProducer producer = scene.producer();
        send(scene, producer, 0, 40);
        Tool.show(producer);
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = counting(scene, count);
        Scene.await("40 messages", () -> count.get() >= 40);
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        Thread.sleep(1500);
        call("topicStats", () -> {
            var table = admin.examineTopicStats(scene.topic).getOffsetTable();
            return table.size() + " " + table.values().stream().mapToLong(each -> each.getMaxOffset()).sum();
        });
        call("consumeStats", () -> {
            var stats = admin.examineConsumeStats(scene.group, scene.topic);
            return stats.getOffsetTable().size() + " " + stats.computeTotalDiff();
        });
        call("consumeStatsOfGroup", () -> admin.examineConsumeStats(scene.group).computeTotalDiff());
        call("consumerConnection", () ->
            admin.examineConsumerConnectionInfo(scene.group).getConnectionSet().size() + " "
                + admin.examineConsumerConnectionInfo(scene.group).getSubscriptionTable().containsKey(scene.topic));
        call("producerConnection", () ->
            admin.examineProducerConnectionInfo(scene.topic + "-producer", scene.topic).getConnectionSet().size());
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        call("consumerRunningInfo", () ->
            admin.getConsumerRunningInfo(scene.group, client, false).getSubscriptionSet().size());
        call("consumerStatus", () -> admin.getConsumeStatus(scene.topic, scene.group, client).containsKey(client));
        call("whoConsumes", () -> admin.queryTopicConsumeByWho(scene.topic).getGroupList().contains(scene.group));
        call("consumeTimeSpan", () -> admin.queryConsumeTimeSpan(scene.topic, scene.group).size());
        call("runtimeStats", () -> admin.fetchBrokerRuntimeStats(leader).getTable().containsKey("brokerVersionDesc"));
        call("brokerConfig", () -> admin.getBrokerConfig(leader).containsKey("brokerName"));
        call("consumeDirectly", () -> {
            MessageExt any = admin.viewMessage(scene.topic, producer.send(scene.message("direct")).getOffsetMsgId());
            return admin.consumeMessageDirectly(scene.group, client, scene.topic, any.getMsgId()).getConsumeResult();
        });
        call("kv", () -> {
            admin.createAndUpdateKvConfig("INTEROP", scene.topic, "v");
            String value = admin.getKVConfig("INTEROP", scene.topic);
            admin.deleteKvConfig("INTEROP", scene.topic);
            return value;
        });
        call("cloneGroupOffset", () -> {
            // 4.9 finds a group by its retry topic, which its first member brings about.
            DefaultMQPushConsumer first = scene.consumer("first", group);
            first.subscribe(scene.topic, "*");
            first.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
            first.start();
            Thread.sleep(500);
            first.shutdown();
            admin.cloneGroupOffset(scene.group, group, scene.topic, true);
            return admin.examineConsumeStats(group, scene.topic).getOffsetTable().size();
        });
        consumer.shutdown();
        call("deleteGroup", () -> {
            admin.deleteSubscriptionGroup(leader, group);
            return admin.getAllSubscriptionGroup(leader, 5000).getSubscriptionGroupTable().containsKey(group);
        });
        call("deleteTopic", () -> {
            admin.deleteTopicInBroker(Set.of(leader), fresh);
            admin.deleteTopicInNameServer(Set.of(scene.namesrv), broker.getCluster(), fresh);
            Thread.sleep(500); // a registration on its way may still name it, the one after that does not
            return admin.fetchAllTopicList().getTopicList().contains(fresh);
        });
        admin.shutdown();
        producer.shutdown();
    }

    private static void call(String name, Call call) {
        PrintStream normal = System.out;
        System.setOut(System.err);
        try {
            Object value = call.run();
            System.setOut(normal);
            Out.event("call", "name", name, "value", String.valueOf(value));
        } catch (Exception error) {
            error.printStackTrace();
            System.setOut(normal);
            Out.event("call", "name", name, "error", error.toString());
        } finally {
            System.setOut(normal);
        }
    }

    private static List<String> bodies(QueryResult result) {
        List<String> bodies = new ArrayList<>();
        result.getMessageList().forEach(message -> bodies.add(Scene.text(message)));
        return bodies;
    }

    private static DefaultMQPushConsumer counting(Scene scene, AtomicInteger count) throws Exception {
        DefaultMQPushConsumer consumer = scene.consumer("a");
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> Scene.received("a", message));
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static void send(Scene scene, DefaultMQProducer producer, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            producer.send(scene.message("m-" + i));
            Scene.sent("sync", "m-" + i, null);
        }
    }
}
