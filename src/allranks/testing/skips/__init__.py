"""Skips that say what the surroundings lack, by the exit codes of torch's own harness."""
