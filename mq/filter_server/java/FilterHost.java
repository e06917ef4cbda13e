import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.common.filter.FilterContext;
import org.apache.rocketmq.common.filter.MessageFilter;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Runs one filter class in a process of its own: reads blocks of messages from standard input, and writes for each what
 * the class says. A filter server believes nothing of it without looking: the class may do in here what it wants.
 *
 * <p>Arguments: name of the class, consumer group, topic, milliseconds for one message.
 */
public final class FilterHost {
    private static final int NO = 0, YES = 1, FAILED = 2;
    private static final int FINISHED = 0, STOPPED = 1, EXHAUSTED = 2;
    private static final int REASON_CHARS_MAX = 300;
    private static final long CREATE_MILLIS_MAX = 2000;

    private final MessageFilter filter;
    private final FilterContext context = new FilterContext();
    private final String topic;
    private final long nanosMax;
    private final DataInputStream in;
    private final DataOutputStream out;
    private final Object lock = new Object();
    private final List<String> reasons = new ArrayList<>();
    private byte[] verdicts = new byte[0];
    /** Given up when the class leaves no memory for an answer. */
    private byte[] reserve = new byte[1 << 18];
    private int done;
    private long since;
    private boolean isRunning;

    private FilterHost(MessageFilter filter, String group, String topic, long nanosMax, DataInputStream in, DataOutputStream out) {
        this.filter = filter;
        this.topic = topic;
        this.nanosMax = nanosMax;
        this.in = in;
        this.out = out;
        context.setConsumerGroup(group);
    }

    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(FileDescriptor.in), 1 << 16));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16));
        System.setIn(InputStream.nullInputStream());
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        AtomicBoolean isDecided = new AtomicBoolean();
        Thread patience = new Thread(() -> refuseAfter(CREATE_MILLIS_MAX, isDecided, out), "patience");
        patience.setDaemon(true);
        patience.start();
        MessageFilter filter;
        try {
            filter = (MessageFilter) Class.forName(arguments[0]).getDeclaredConstructor().newInstance();
        } catch (Throwable error) {
            String reason = shown(error.getCause() == null ? error : error.getCause());
            if (isDecided.compareAndSet(false, true)) {
                refuse(reason, out);
            }
            return;
        }
        if (!isDecided.compareAndSet(false, true)) {
            return;
        }
        out.writeByte(FINISHED);
        out.flush();
        FilterHost host =
                new FilterHost(filter, arguments[1], arguments[2], Long.parseLong(arguments[3]) * 1_000_000, in, out);
        Thread watch = new Thread(host::watch, "watch");
        watch.setDaemon(true);
        watch.start();
        try {
            while (true) {
                host.serve();
            }
        } catch (EOFException end) {
            Runtime.getRuntime().halt(0);
        } catch (Throwable error) {
            Runtime.getRuntime().halt(1);
        }
    }

    /** Ends the process if its class was not created in time: other classes wait to be created. */
    private static void refuseAfter(long millis, AtomicBoolean isDecided, DataOutputStream out) {
        try {
            Thread.sleep(millis);
            if (isDecided.compareAndSet(false, true)) {
                refuse("creating it took longer than " + millis + " ms", out);
            }
        } catch (InterruptedException | IOException error) {
            Runtime.getRuntime().halt(1);
        }
    }

    private static void refuse(String reason, DataOutputStream out) throws IOException {
        out.writeByte(STOPPED);
        out.writeUTF(reason);
        out.flush();
        Runtime.getRuntime().halt(1);
    }

    /** One block: milliseconds for all of it, the messages' places, and the bytes in which they are. */
    private void serve() throws IOException {
        long ends = System.nanoTime() + in.readInt() * 1_000_000L;
        int count = in.readInt();
        int[] places = new int[5 * count];
        for (int each = 0; each < places.length; each++) {
            places[each] = in.readInt();
        }
        byte[] data = new byte[in.readInt()];
        in.readFully(data);
        synchronized (lock) {
            verdicts = new byte[count];
            reasons.clear();
            done = 0;
            isRunning = true;
            since = System.nanoTime();
        }
        for (int number = 0; number < count && (number == 0 || System.nanoTime() < ends); number++) {
            byte verdict;
            String reason = null;
            try {
                verdict = (byte) (filter.match(message(data, places, 5 * number), context) ? YES : NO);
            } catch (OutOfMemoryError error) {
                synchronized (lock) {
                    reserve = null;
                    answer(EXHAUSTED, shown(error));
                    Runtime.getRuntime().halt(1);
                }
                return;
            } catch (Throwable error) {
                verdict = FAILED;
                reason = shown(error);
            }
            synchronized (lock) {
                verdicts[number] = verdict;
                if (reason != null) {
                    reasons.add(reason);
                }
                done = number + 1;
                since = System.nanoTime();
            }
        }
        synchronized (lock) {
            isRunning = false;
            answer(FINISHED, null);
        }
    }

    /** Ends the process when one message takes too long: a thread of Java cannot be stopped. */
    private void watch() {
        try {
            while (true) {
                Thread.sleep(5);
                synchronized (lock) {
                    if (isRunning && System.nanoTime() - since > nanosMax) {
                        answer(STOPPED, "it took longer than it may for one message");
                        Runtime.getRuntime().halt(1);
                    }
                }
            }
        } catch (InterruptedException | IOException error) {
            Runtime.getRuntime().halt(1);
        }
    }

    private void answer(int ending, String reason) throws IOException {
        out.writeByte(ending);
        out.writeInt(done);
        out.write(verdicts, 0, done);
        for (String each : reasons) {
            out.writeUTF(each);
        }
        if (reason != null) {
            out.writeUTF(reason);
        }
        out.flush();
    }

    private MessageExt message(byte[] data, int[] places, int at) throws IOException {
        ByteBuffer head = ByteBuffer.wrap(data, places[at], data.length - places[at]).slice();
        int size = head.getInt();
        head.getInt();
        int[] numbers = new int[6];
        long[] longs = new long[5];
        SocketAddress[] hosts = new SocketAddress[2];
        numbers[0] = head.getInt();
        numbers[1] = head.getInt();
        numbers[2] = head.getInt();
        longs[0] = head.getLong();
        longs[1] = head.getLong();
        numbers[3] = head.getInt();
        longs[2] = head.getLong();
        hosts[0] = host(head, (numbers[3] & 0x10) != 0);
        longs[3] = head.getLong();
        hosts[1] = host(head, (numbers[3] & 0x20) != 0);
        numbers[4] = head.getInt();
        longs[4] = head.getLong();
        numbers[5] = size;
        byte[] body = new byte[places[at + 4]];
        System.arraycopy(data, places[at + 3], body, 0, body.length);
        String text = new String(data, places[at + 1], places[at + 2], StandardCharsets.UTF_8);
        return new MessageExt(topic, properties(text), body, numbers, longs, hosts);
    }

    private static SocketAddress host(ByteBuffer head, boolean isIPv6) throws IOException {
        byte[] address = new byte[isIPv6 ? 16 : 4];
        head.get(address);
        return new InetSocketAddress(InetAddress.getByAddress(address), head.getInt() & 0xFFFF);
    }

    private static Map<String, String> properties(String text) {
        Map<String, String> found = new HashMap<>();
        for (String each : text.split("\u0002")) {
            int at = each.indexOf('\u0001');
            if (at > 0 && at + 1 < each.length()) {
                found.put(each.substring(0, at), each.substring(at + 1));
            }
        }
        return found;
    }

    private static String shown(Throwable error) {
        String text;
        try {
            text = String.valueOf(error);
        } catch (Throwable other) {
            text = error.getClass().getName();
        }
        return text.length() > REASON_CHARS_MAX ? text.substring(0, REASON_CHARS_MAX) : text;
    }
}
