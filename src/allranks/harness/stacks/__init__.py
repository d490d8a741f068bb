"""What is taken of a rank that does not go on: its stacks, and what torch has recorded of its collectives."""
