"""What the replicas of a group ask each other on behalf of clients."""
