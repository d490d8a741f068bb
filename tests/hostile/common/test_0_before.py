"""What happens before every attack, in a gang of its own and in that of the attack."""


def test_victim(rank):
    assert rank == 0


def test_honest():
    pass
