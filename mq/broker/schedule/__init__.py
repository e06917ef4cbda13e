"""Messages with a delay level or a delivery time: where they wait, how they are delivered and recalled."""
