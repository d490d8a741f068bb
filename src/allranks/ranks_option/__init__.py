"""Plain pytest sessions of several ranks: ``--ranks N``, and one report of the ranks of a launcher."""
