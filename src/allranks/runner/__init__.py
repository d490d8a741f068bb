"""The order of jobs, their GPUs, and the records of their runs."""
