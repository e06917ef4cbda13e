"""The handlers of requests: they ask the servers through a `Watch`, and hand the answers to `mq.console.views`."""
