"""Messages with a delay level or a delivery time: placement, delivery and recall."""
