"""What the platform's API costs and adds: real API processes, database, Redis and transport around
a pretend engine that says when it made each token; beside LiteLLM's proxy on the same load."""
