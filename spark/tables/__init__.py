"""Topics as tables: what `raftmq table` runs. The modules without Spark hold the rules, the others call Spark."""
