"""Measures the effects on clients while leaders fail and replicas are upgraded."""
