"""The replicated state of a broker group: what every replica knows because its log says so."""
