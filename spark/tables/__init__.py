"""Topics as tables: the code of `raftmq table`. The modules without Spark hold the rules, the others call Spark."""
