"""An innocent module beside the faulty one."""


def test_innocent():
    pass
