"""Measures whether resident memory grows over a long run."""
