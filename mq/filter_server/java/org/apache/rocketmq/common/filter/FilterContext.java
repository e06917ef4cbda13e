package org.apache.rocketmq.common.filter;

/** For whom a message is filtered. */
public class FilterContext {
    private String consumerGroup;

    public String getConsumerGroup() {
        return consumerGroup;
    }

    public void setConsumerGroup(String consumerGroup) {
        this.consumerGroup = consumerGroup;
    }
}
