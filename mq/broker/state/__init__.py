"""The replicated state of a broker group: derived from the log, and equal on all replicas."""
