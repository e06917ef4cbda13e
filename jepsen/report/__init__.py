"""Writes pages, charts and tables about runs, and finds the lines of a history that show an anomaly."""
