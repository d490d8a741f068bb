"""The commands of the command line, a module for each: its arguments, and what it does.

The parser is made of all of them, so each start imports these modules. What only some commands need (the Docker SDK,
which a noxfile's interpreter does not have, and whatever takes long) they import when they are asked to do something.
"""
