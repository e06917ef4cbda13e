"""Reports runs: pages, charts, tables of profiles, and the lines that show an anomaly."""
