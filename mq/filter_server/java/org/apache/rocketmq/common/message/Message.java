package org.apache.rocketmq.common.message;

import java.util.HashMap;
import java.util.Map;

/** What a producer sent, for filter classes: they only read it. */
public class Message {
    private final String topic;
    private final int flag;
    private final Map<String, String> properties;
    private final byte[] body;

    protected Message(String topic, int flag, Map<String, String> properties, byte[] body) {
        this.topic = topic;
        this.flag = flag;
        this.properties = properties;
        this.body = body;
    }

    public String getTopic() {
        return topic;
    }

    public int getFlag() {
        return flag;
    }

    public byte[] getBody() {
        return body;
    }

    public Map<String, String> getProperties() {
        return new HashMap<>(properties);
    }

    public String getProperty(String name) {
        return properties.get(name);
    }

    public String getUserProperty(String name) {
        return properties.get(name);
    }

    public String getTags() {
        return properties.get("TAGS");
    }

    public String getKeys() {
        return properties.get("KEYS");
    }

    public String getBuyerId() {
        return properties.get("BUYER_ID");
    }

    public String getTransactionId() {
        return properties.get("UNIQ_KEY");
    }

    public int getDelayTimeLevel() {
        String level = properties.get("DELAY");
        return level == null ? 0 : Integer.parseInt(level);
    }

    public boolean isWaitStoreMsgOK() {
        String waits = properties.get("WAIT");
        return waits == null || Boolean.parseBoolean(waits);
    }
}
