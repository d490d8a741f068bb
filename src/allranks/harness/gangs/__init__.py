"""What the agent supervises: a gang of ranks, what arrives from them, and what is done when one goes wrong."""
