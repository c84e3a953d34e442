"""Kills and stops the processes of a `tenora up` under load, and accounts for every request."""
