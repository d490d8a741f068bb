"""The commands of the command line: each has a module, which declares its arguments and does what they ask for."""
