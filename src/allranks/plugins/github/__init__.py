"""GitHub Actions: groups, annotations, summaries and outputs of steps that run allranks."""
