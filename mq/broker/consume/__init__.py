"""Consumer groups: members, rebalancing, queue locks, offsets and pulls."""
