import pytest

from allranks.testing import has_efa, tensorpipe_transports


@pytest.fixture
def fi_info(tmp_path, monkeypatch):
    """``fi_info(status)``: simulates a host whose ``fi_info`` exits with this status, or that has none."""

    def make(status):
        if status is not None:
            program = tmp_path / "fi_info"
            program.write_text(f'#!/bin/sh\n[ "$*" = "-p efa -t FI_EP_RDM" ] || exit 9\necho noise\nexit {status}\n')
            program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        has_efa.cache_clear()

    yield make
    has_efa.cache_clear()


@pytest.mark.parametrize(("status", "transports"), [(0, ["shm", "uv"]), (61, None), (None, None)])
def test_infiniband_is_omitted_with_efa(fi_info, capfd, status, transports):
    fi_info(status)
    assert tensorpipe_transports() == transports
    assert capfd.readouterr() == ("", "")
