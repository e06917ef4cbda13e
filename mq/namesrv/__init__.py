"""The name server: brokers register, clients ask where a topic is. Name servers know nothing of each other."""
