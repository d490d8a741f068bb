"""One rank makes two groups in another order than its peers: their members wait for each other in vain."""

import torch.distributed as dist

FAULT = {
    "world_size": 3,
    "limits": {"process_group": 2, "test": 4},
    "verdict": [("failure", "failed"), ("error", "timed_out")],
    "leading": 1,
    "ranks": ["failed|aborted", "failed|timed_out", "failed|aborted"],
    "words": ["ranks 0 and 2 called new_group of ranks 0 and 1 #1, rank 1 new_group of ranks 1 and 2 #1"],
    "seconds": 9,
    "undetermined": "whether gloo's own time-out comes before the limit of the test",
}


def test_fault(rank):
    groups = [[0, 1], [1, 2]]
    for ranks in reversed(groups) if rank == 1 else groups:
        dist.new_group(ranks)
