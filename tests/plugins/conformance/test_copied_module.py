"""A backend that is given as a module of this folder is copied without what its links lead to."""

import pytest

from allranks.errors import EngineError
from allranks.plugins.conformance.command import _copy_module

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize("link", ["backend/key.py", "backend", "backend.py"])
def test_a_link_out_of_the_folder_is_refused(tmp_path, link):
    folder, secret = tmp_path / "here", tmp_path / "elsewhere"
    for item in (folder, secret):
        item.mkdir()
    (secret / "key.py").write_text(KEY)
    if link == "backend/key.py":
        (folder / "backend").mkdir()
        (folder / "backend/__init__.py").touch()
    (folder / link).symlink_to(secret if link == "backend" else secret / "key.py")
    with pytest.raises(EngineError, match="outside of the repository's files"):
        _copy_module("backend", folder, tmp_path / "copy")
    assert not any(KEY in path.read_text() for path in (tmp_path / "copy").rglob("*.py"))
