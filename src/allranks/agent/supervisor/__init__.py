"""The job's first process: it never imports tested code."""
