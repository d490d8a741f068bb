"""Hooks of the suite raise while a test runs on one rank: the test is an error there, with the hook's own words."""

import torch
import torch.distributed as dist

FAULT = {
    "test": "test_of_the_protocol",
    "verdict": ("error", "errored"),
    "leading": 1,
    "ranks": ["passed", "errored"],
    "words": ["rank 1 errored: a hook aborted the test: ValueError: in the protocol"],
    "others": {
        "test_of_the_report": {
            "verdict": ("error", "errored"),
            "leading": 1,
            "ranks": ["passed", "errored"],
            "words": ["a hook aborted the test: ValueError: in the report"],
        },
        "test_of_the_log": {
            "verdict": ("error", "errored"),
            "leading": 1,
            "ranks": ["passed", "errored"],
            "words": ["a hook aborted the test: ValueError: in the log"],
        },
        "test_of_an_exit": {
            "verdict": ("error", "errored"),
            "leading": 1,
            "ranks": ["passed", "errored"],
            "words": ["a hook aborted the test: SystemExit: 77"],
        },
    },
    "seconds": 8,
}


def test_of_the_protocol():
    pass


def test_of_the_report():
    pass


def test_of_the_log():
    pass


def test_of_an_exit():
    pass


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size
