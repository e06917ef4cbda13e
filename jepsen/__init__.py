"""Runs real processes under faults, records their histories, and checks these."""
