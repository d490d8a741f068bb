"""The agent's pytest session: which tests there are, and on which terms each is run."""
