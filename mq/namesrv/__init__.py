"""The name server: brokers register, clients ask for routes. Name servers do not communicate with each other."""
