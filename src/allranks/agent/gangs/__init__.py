"""The supervisor's view of a gang of ranks, and its reaction when one goes wrong."""
