"""The process that imports torch, collects the suite and forks ranks."""
