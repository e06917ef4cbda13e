"""Measurements: one script per question."""
