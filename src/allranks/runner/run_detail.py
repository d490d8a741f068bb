"""How much a run prints: ``-q`` leaves out all but problems, ``-v`` adds requests and evidence."""

from collections.abc import Iterator
from typing import Final, Literal

from allranks.engines.base import JobSpec
from allranks.protocol.records import RankEnded
from allranks.protocol.xml_text import readable

Detail = Literal["quiet", "usual", "verbose"]

_LINES: Final = 100
_MIB: Final = 1 << 20


def request_lines(spec: JobSpec) -> Iterator[str]:
    """What an engine is asked for, with the path of the tests as pytest gets it: part of ``plan --requests``."""
    agent, room = spec.agent, spec.resources
    yield f"{spec.job_id}: attempt {spec.attempt} of run {spec.run_id}, seed {agent.seed}"
    yield f"    {'image' if spec.image else 'python'}: {spec.image or spec.python}"
    yield f"    pytest: {' '.join((*agent.paths, *agent.pytest_args))}"
    yield f"    ranks: {agent.world_size} on {agent.nodes} node(s), {agent.backend} by {agent.init_method}"
    if spec.gpus:
        yield f"    GPUs: {', '.join(spec.gpus)} ({spec.passthrough.driver})"
    if spec.environment:
        yield f"    environment: {' '.join(f'{name}={value}' for name, value in sorted(spec.environment.items()))}"
    limits = agent.limits
    yield f"    limits: {limits.test:g} s a test, {limits.job:g} s the job, {limits.process_group:g} s a process group"
    yield f"    room: {room.cpus} CPUs, {room.memory_bytes // _MIB} MiB, {room.shm_bytes // _MIB} MiB in /dev/shm"


def evidence_lines(ended: RankEnded) -> Iterator[str]:
    """What a bad rank left: its traceback or stacks, and what it printed; the ends of long texts."""
    for title, text in (("", ended.text), ("stdout", ended.stdout), ("stderr", ended.stderr)):
        lines = readable(text).splitlines()
        if lines and title:
            yield f"    [rank {ended.rank}] captured {title}:"
        if len(lines) > _LINES:
            yield f"    [rank {ended.rank}] … {len(lines) - _LINES} lines above"
        yield from (f"    [rank {ended.rank}] {line}" for line in lines[-_LINES:])
