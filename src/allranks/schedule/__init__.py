"""Which job runs when, on which GPUs, and what is written down about it."""
