"""Files derived from the committed log: consume queues, and the checkpoint that says how far they reach."""
