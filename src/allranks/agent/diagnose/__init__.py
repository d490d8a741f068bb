"""What went wrong in a gang: stacks, calls, and the rank that is the cause."""
