"""The load generator's protocols: requests built before the start, responses split and matched."""
