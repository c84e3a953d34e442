"""`tenora bench cache`: traces replayed under a virtual clock by the engine's own scheduler, memory
manager and policies; only the model runner, the arena's tensors and the loader are simulated."""
