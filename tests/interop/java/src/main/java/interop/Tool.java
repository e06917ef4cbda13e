package interop;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** mqadmin itself. It takes its keys from conf/tools.yml of its home directory. */
final class Tool {
    private Tool() {
    }

    /** Each line of standard input: for how long it may run, in ms, and the words of a command, separated by tabs. */
    static void run(Scene scene) throws Exception {
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = Tracing.consumer(scene, "a");
        consumer.setMqClientApiTimeout(Scene.SLOW_MS);
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = Tracing.producer(scene);
        producer.setSendMsgTimeout(Scene.SLOW_MS);
        Message message = scene.message("m");
        message.setKeys("the-key");
        SendResult sent = producer.send(message);
        show(producer);
        Scene.await("a message", () -> count.get() > 0);
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        Out.event("ready", "id", sent.getMsgId(), "offset_id", sent.getOffsetMsgId(),
            "queue", sent.getMessageQueue().getQueueId(), "offset", sent.getQueueOffset(),
            "client", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId(),
            "commands", commands());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null && !line.equals("stop"); line = lines.readLine()) {
            String[] words = line.split("\t");
            long began = System.currentTimeMillis();
            AtomicBoolean ended = new AtomicBoolean();
            String output = output(Long.parseLong(words[0]), ended, Arrays.copyOfRange(words, 1, words.length));
            Out.event("command", "line", line, "output", output, "ended", ended.get(),
                "ms", System.currentTimeMillis() - began);
        }
        consumer.shutdown();
        producer.shutdown();
    }

    /** The names of all commands that this version has. */
    private static TreeSet<String> commands() throws ReflectiveOperationException {
        MQAdminStartup.initCommand();
        TreeSet<String> names = new TreeSet<>();
        table().forEach(command -> names.add(command.commandName()));
        return names;
    }

    /** The tool's own table of commands. Some can run once only; the tool puts new ones into the table when it starts. */
    @SuppressWarnings("unchecked")
    private static List<SubCommand> table() throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                return (List<SubCommand>) field.get(null);
            }
        }
        throw new NoSuchFieldException("the commands of " + MQAdminStartup.class);
    }

    /** Brokers hear of a producer with its next heartbeat, which may take half a minute. */
    static void show(DefaultMQProducer producer) {
        producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
    }

    /** What the tool prints. */
    static String output(String... words) {
        return output(60_000, new AtomicBoolean(), words);
    }

    /** The same of a command that is interrupted after a while, if it has not ended by then. */
    private static String output(long millis, AtomicBoolean ended, String... words) {
        PrintStream normal = System.out;
        PrintStream errors = System.err;
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(bytes, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        try {
            table().clear();
            Thread thread = new Thread(() -> MQAdminStartup.main0(words, null), "mqadmin");
            thread.start();
            thread.join(millis);
            ended.set(!thread.isAlive());
            if (thread.isAlive()) {
                bytes.write('\n');
                String said = bytes.toString(StandardCharsets.UTF_8);
                thread.interrupt();
                thread.join(millis);
                return said;
            }
        } catch (InterruptedException | ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        } finally {
            System.setOut(normal);
            System.setErr(errors);
        }
        return bytes.toString(StandardCharsets.UTF_8);
    }
}
