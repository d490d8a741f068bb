"""The commands of the command line, one module for each.

Slow modules, and the Docker SDK, which a noxfile's interpreter does not have, are imported inside of functions.
"""
