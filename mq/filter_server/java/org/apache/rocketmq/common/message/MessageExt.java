package org.apache.rocketmq.common.message;

import java.net.SocketAddress;
import java.util.Map;

/** A stored message, for filter classes. */
public class MessageExt extends Message {
    private final int queueId;
    private final int sysFlag;
    private final int bodyCRC;
    private final int reconsumeTimes;
    private final int storeSize;
    private final long queueOffset;
    private final long commitLogOffset;
    private final long preparedTransactionOffset;
    private final long bornTimestamp;
    private final long storeTimestamp;
    private final SocketAddress bornHost;
    private final SocketAddress storeHost;

    /** For the program that runs filters. Numbers are in the order of a stored record, times in ms since 1970. */
    public MessageExt(
            String topic, Map<String, String> properties, byte[] body, int[] numbers, long[] longs, SocketAddress[] hosts) {
        super(topic, numbers[2], properties, body);
        bodyCRC = numbers[0];
        queueId = numbers[1];
        sysFlag = numbers[3];
        reconsumeTimes = numbers[4];
        storeSize = numbers[5];
        queueOffset = longs[0];
        commitLogOffset = longs[1];
        bornTimestamp = longs[2];
        storeTimestamp = longs[3];
        preparedTransactionOffset = longs[4];
        bornHost = hosts[0];
        storeHost = hosts[1];
    }

    public int getQueueId() {
        return queueId;
    }

    public int getSysFlag() {
        return sysFlag;
    }

    public int getBodyCRC() {
        return bodyCRC;
    }

    public int getReconsumeTimes() {
        return reconsumeTimes;
    }

    public int getStoreSize() {
        return storeSize;
    }

    public long getQueueOffset() {
        return queueOffset;
    }

    public long getCommitLogOffset() {
        return commitLogOffset;
    }

    public long getPreparedTransactionOffset() {
        return preparedTransactionOffset;
    }

    public long getBornTimestamp() {
        return bornTimestamp;
    }

    public long getStoreTimestamp() {
        return storeTimestamp;
    }

    public SocketAddress getBornHost() {
        return bornHost;
    }

    public SocketAddress getStoreHost() {
        return storeHost;
    }

    public String getMsgId() {
        return getProperty("UNIQ_KEY");
    }
}
