"""Many queues, restarts, followers: goals of the message store."""
