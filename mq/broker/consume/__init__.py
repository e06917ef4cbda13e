"""Consumer groups: members, rebalancing, queue locks, offsets, pulls, and repair of the queue files that they read."""
