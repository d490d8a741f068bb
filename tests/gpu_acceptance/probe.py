"""Has every GPU compute, and prints the free memory of each in MiB as JSON: ``python -m gpu_acceptance.probe``."""

import json

from allranks.agent.gpus import compute
from gpu_acceptance.device import device


def main() -> None:
    """Compute, then look."""
    gpu = device()
    for number in range(gpu.count()):
        compute(str(gpu.place(number)))
    print(json.dumps([gpu.memory(number)[0] for number in range(gpu.count())]))


if __name__ == "__main__":
    main()
