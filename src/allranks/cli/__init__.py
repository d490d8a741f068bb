"""The commands of the command line, a module for each: its arguments, and what it does.

The parser is built from all of them, so each start imports these modules. Imports that only some commands need (the
Docker SDK, which a noxfile's interpreter does not have, and slow modules) happen when a command runs.
"""
