"""Work that is divided among the processes of a model, each part done once."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


class Replicas:
    """The processes that hold the same model; this one alone if there is no group.

    Process groups are never started here: a model brings its own.
    """

    def __init__(self, group: Any | None) -> None:
        self.group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.size = dist.get_world_size(group) if group is not None else 1

    def owners(self, costs: Sequence[float]) -> list[int]:
        """The process of each piece of work: the largest first, to the least loaded."""
        loads, found = [0.0] * self.size, [0] * len(costs)
        for piece in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            found[piece] = loads.index(min(loads))
            loads[found[piece]] += costs[piece]
        return found

    def gathered(self, found: dict[int, Any]) -> dict[int, Any]:
        """The entries of all processes, in every process."""
        if self.group is None:
            return found
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, found, group=self.group)
        return {key: value for each in everyone for key, value in each.items()}

    def shared(self, tensor: torch.Tensor, owner: int) -> torch.Tensor:
        """The owner's tensor, received by the others into theirs."""
        if self.group is not None:
            source = dist.get_global_rank(self.group, owner)
            dist.broadcast(tensor, source, group=self.group)
        return tensor


def replicas_of(model: nn.Module, group: Any = None) -> Replicas:
    """The processes of a group, or those that a model is distributed over."""
    if group is not None:
        return Replicas(group)
    if isinstance(model, torch._dynamo.OptimizedModule):
        model = model._orig_mod
    if isinstance(model, DistributedDataParallel):
        return Replicas(model.process_group)
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            return Replicas(_all_of(parameter))
    return Replicas(None)


def _all_of(parameter: DTensor) -> Any:
    """The group of all processes that hold a part of a parameter."""
    mesh = parameter.device_mesh
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() != dist.get_world_size():
        raise ValueError(
            "A mesh of several dimensions must hold all processes, got "
            f"{mesh.size()} of {dist.get_world_size()}."
        )
    return dist.group.WORLD


def write(parameter: torch.Tensor, values: torch.Tensor) -> None:
    """Set a parameter, or this process's shard of it, to new values."""
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        shards = distribute_tensor(values, mesh, placements, src_data_rank=None)
        parameter, values = parameter.to_local(), shards.to_local()
    parameter.copy_(values)
