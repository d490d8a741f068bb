"""What comes after every attack: a failure of the rank that did not attack."""


def test_after(rank):
    assert rank == 1
