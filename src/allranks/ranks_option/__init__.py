"""``pytest --ranks N``: the tests of a plain pytest session, each on N ranks of this host."""
