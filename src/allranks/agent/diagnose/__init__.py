"""Diagnosis of a failed or hanging gang: stacks, calls, and the primary failure."""
