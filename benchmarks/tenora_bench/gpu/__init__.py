"""What `make gpu` does, a module a section: proofs of the Triton kernels, then their times against
the GPU's measured ceilings. Needs torch, triton and this repository's kernels and engine."""
