"""Folders of runs, as a fixture."""

from run_folders import run_folder

__all__ = ["run_folder"]
