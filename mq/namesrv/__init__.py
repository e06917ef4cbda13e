"""The name server, at which brokers register and clients ask for routes. Name servers do not know each other."""
