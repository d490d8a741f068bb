"""Skips that report missing requirements, by the exit codes of torch's own harness."""
