"""Files derived from the committed log: consume queues, and the checkpoint that records how far they reach."""
