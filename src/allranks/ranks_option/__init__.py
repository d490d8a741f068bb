"""Plain pytest sessions of several ranks: ``pytest --ranks N``, and one report of the ranks of a launcher."""
