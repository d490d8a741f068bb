"""The command line: a module for each command, and what they share.

Slow modules, and the Docker SDK, which a noxfile's interpreter lacks, are imported inside functions.
"""
