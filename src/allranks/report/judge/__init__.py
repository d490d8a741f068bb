"""The verdicts of tests and jobs: from the results of ranks to an exit code."""
