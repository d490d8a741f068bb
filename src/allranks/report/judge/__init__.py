"""Turns the results of ranks into verdicts on tests and jobs, and these into an exit code."""
