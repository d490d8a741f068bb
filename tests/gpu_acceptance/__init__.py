"""Proves a GPU machine: the parts that ``scripts/gpu-acceptance`` runs, and what they are made of."""
