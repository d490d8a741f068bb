import re

from allranks.images import base
from allranks.images.base import dockerfile_path


def test_a_checkout_has_the_dockerfile():
    assert dockerfile_path().read_text().count("\nFROM ${BASE_IMAGE}") == 2


def test_an_installed_package_has_it_next_to_the_module(tmp_path, monkeypatch):
    (tmp_path / "Dockerfile.cuda").touch()
    monkeypatch.setattr(base, "__file__", str(tmp_path / "dockerfile.py"))
    assert dockerfile_path() == tmp_path / "Dockerfile.cuda"


def test_the_legacy_builder_can_read_it():
    instructions = [line for line in dockerfile_path().read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in instructions if re.search(r"^(RUN|COPY) .*(--mount|--link|<<)", line)]


def test_the_user_is_a_number():
    assert "\nUSER 10001:10001\n" in dockerfile_path().read_text()
