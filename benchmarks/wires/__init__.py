"""What the load generator says to each kind of server: requests built before the start, replies cut and matched."""
