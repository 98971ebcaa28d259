"""Which of the processes of a torchrun is this, and where does it train?"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the other processes, if torchrun started this one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    import torch
    import torch.distributed as dist

    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(device_of(device))  # what NCCL takes, unless it is told
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield
        dist.barrier()  # torchrun ends all of them when one ends with another code
    finally:
        dist.destroy_process_group()


def world_size() -> int:
    """How many processes share a training."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process among them."""
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """Whether this process writes the results; without torchrun it does."""
    return rank() == 0


def device_of(name: str) -> "torch.device":
    """The device to train on: with "cuda" under torchrun, each process has its own."""
    import torch

    if name == "cuda" and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device(name)
