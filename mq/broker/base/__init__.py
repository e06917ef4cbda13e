"""What every part of a broker uses and none owns: counters, rate-limited warnings, disk space, retention."""
