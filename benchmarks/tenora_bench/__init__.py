"""Measurements of Tenora as its users meet it: over HTTP, beside its peers, interleaved in one run.

Knows the server only by its API and the peers only by theirs."""
