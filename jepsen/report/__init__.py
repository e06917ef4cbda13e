"""What becomes of runs: pages, charts, tables of profiles, and where an anomaly shows."""
