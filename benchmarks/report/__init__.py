"""Writes the results of a run as files and pages, and compares them with their goals."""
