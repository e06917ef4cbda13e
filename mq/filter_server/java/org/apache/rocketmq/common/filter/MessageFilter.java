package org.apache.rocketmq.common.filter;

import org.apache.rocketmq.common.message.MessageExt;

/** What a filter class of a consumer implements. */
public interface MessageFilter {
    boolean match(MessageExt message, FilterContext context);
}
