"""Evidence of a rank that hangs: its stacks, and what torch recorded of its collectives."""
