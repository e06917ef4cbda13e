"""Parts that all of a broker shares: counters, rate-limited warnings, disk usage, retention."""
