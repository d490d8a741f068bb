"""The part of the agent that runs in the process of a rank."""
