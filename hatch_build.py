"""Sets the metadata that depend on the repository: the project URLs, and the links of the README."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_BADGE = re.compile(r"\[!\[[^\]]+\]\([^)\s]+\)\]\([^)\s]+\)\n*")
_PICTURE = re.compile(r"!\[(?P<text>[^\]]+)\]\((?!https?:)(?P<path>[^)\s]+)\)\n*")
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?!https?:|#)(?P<path>[^)\s]+)\)")


def address(environ: Mapping[str, str]) -> str:
    """The address of the repository that a GitHub workflow builds; empty elsewhere."""
    if "GITHUB_REPOSITORY" not in environ:
        return ""
    return f"{environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{environ['GITHUB_REPOSITORY']}"


def urls(home: str) -> dict[str, str]:
    """The project URLs on a package index."""
    if not home:
        return {}
    pages = {"Documentation": "tree/HEAD/docs", "Changelog": "blob/HEAD/CHANGELOG.md", "Issues": "issues"}
    return {"Source": home, **{name: f"{home}/{path}" for name, path in pages.items()}}


def readme(text: str, home: str) -> str:
    """The README for a package index, with absolute links to the repository, and without badges.

    Without a repository, it has no links and no pictures.
    """
    text = _PICTURE.sub(f"![\\g<text>]({home}/raw/HEAD/\\g<path>)\n\n" if home else "", _BADGE.sub("", text))
    return _LINK.sub(rf"[\g<text>]({home}/blob/HEAD/\g<path>)" if home else r"\g<text>", text)


class CustomMetadataHook(MetadataHookInterface):
    """Called by hatchling for each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dynamic fields of ``[project]``."""
        home = address(os.environ)
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, home)}
        metadata["urls"] = urls(home)
