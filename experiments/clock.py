"""Seconds that other programs on the machine hardly change."""

import time
from collections.abc import Callable

import torch

Clock = Callable[[], float]


def clock_of(device: torch.device) -> Clock:
    """Processor seconds of this process; on a GPU, seconds once its work is done."""
    if device.type == "cpu":
        return time.process_time

    def seconds() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return seconds
