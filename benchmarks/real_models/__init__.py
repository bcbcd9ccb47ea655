"""Two small models on this machine, each plain and with examples: the whole way from questions to a service."""
