"""What clients notice while leaders fail and replicas are upgraded."""
