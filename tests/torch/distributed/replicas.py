"""Run by torchrun in two processes: replicas and shards stay what they should be."""

import copy
import gc

import pytest
import torch
import torch.distributed as dist
from networks import EXAMPLE, small, train
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from convspectra import operator_norm
from convspectra._bound import enforce
from convspectra.torch import SpectralClip, bounded, layers, project_


def is_same_everywhere(model):
    """Whether all parameters have the same bits in all processes."""
    for parameter in model.parameters():
        found = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(found, parameter.detach().contiguous())
        if not all(torch.equal(found[0], other) for other in found):
            return False
    return True


def replicas():
    """After 15 projections the replicas are bit-identical, and each was made once."""
    model = DistributedDataParallel(small())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    calls, scale_down = [], enforce.scale_down
    enforce.scale_down = lambda *args: calls.append(1) or scale_down(*args)
    bound = SpectralClip(model, 0.5, 1, method="project", example=torch.zeros(EXAMPLE))
    bound.attach(optimizer)
    train(model, optimizer, 15, seed=dist.get_rank())
    enforce.scale_down = scale_down
    assert bound.passes == 15
    assert is_same_everywhere(model)
    assert max(change.after for change in bound.last.changes) <= 0.5
    assert [change.name for change in bound.last.changes][:2] == ["0", "1.inner"]
    both = [None, None]
    dist.all_gather_object(both, len(calls))
    assert min(both) > 0  # the layers were shared out,
    assert max(both) < 15 * 5  # and none made all of them


def group_given():
    """A model that does not say so itself can be given its group."""
    model = small()
    with torch.no_grad():
        model[0].weight *= 1 + dist.get_rank()  # replicas that have drifted apart
    bound = SpectralClip(
        model, 0.5, example=torch.zeros(EXAMPLE), group=dist.group.WORLD
    )
    bound.apply()
    assert is_same_everywhere(model)


def batch_norms():
    """The statistics of the first process count, which DDP gives to all others."""
    torch.manual_seed(0)
    pairs = [(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)) for _ in range(4)]
    model = nn.Sequential(*(module for pair in pairs for module in pair))
    replica = DistributedDataParallel(model)
    for _, norm in pairs:
        norm.running_var.fill_(0.01 if dist.get_rank() == 0 else 1.0)
    x = torch.zeros(EXAMPLE)
    bound = SpectralClip(replica, 0.5, method="scale", example=x, fold_batch_norm=True)
    assert max(change.after for change in bound.apply().changes) <= 0.5
    for _, norm in pairs:
        norm.running_var.fill_(0.01)
    found = layers(model, x, fold_batch_norm=True)
    norms = [operator_norm(layer.weight, layer.geometry).lower for layer in found]
    assert 0.4 < max(norms) <= 0.5 + 1e-6
    assert is_same_everywhere(model)


def shards():
    """A sharded model gets what a whole one would."""
    whole = small(channels=6)
    model = copy.deepcopy(whole)
    for part in (model[1], model):
        fully_shard(part)
    assert type(model[0].weight.data).__name__ == "DTensor"
    want = project_(whole, 0.5, torch.zeros(EXAMPLE))
    found = project_(model, 0.5, torch.zeros(EXAMPLE))
    assert [c.after for c in found.changes] == [c.after for c in want.changes]
    assert found.skipped.keys() == want.skipped.keys()
    for a, b in zip(model.parameters(), whole.parameters()):
        assert torch.equal(a.full_tensor(), b)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    bound = SpectralClip(model, 0.5, 1, method="scale", example=torch.zeros(EXAMPLE))
    bound.attach(optimizer)
    train(model, optimizer, 3)
    assert max(change.after for change in bound.last.changes) <= 0.5
    seen = layers(model, torch.zeros(EXAMPLE))
    assert seen[0].weight.shape == (6, 2, 3, 3)
    assert max(change.after for change in project_(model, 0.4, seen).changes) <= 0.4


def shards_of_bounded_weights():
    """A sharded model with parametrizations can be evaluated, and trained again."""
    model = bounded(small(channels=6), 0.5, example=torch.zeros(EXAMPLE))
    whole = copy.deepcopy(model).eval()
    for part in (model[1], model):
        fully_shard(part)
    model.eval()
    torch.testing.assert_close(model(torch.ones(EXAMPLE)), whole(torch.ones(EXAMPLE)))
    train(model.train(), torch.optim.SGD(model.parameters(), 0.05), 2)


def errors():
    """What goes wrong in one process is said by all, and none waits for ever."""
    model = DistributedDataParallel(small())
    with torch.no_grad():
        model.module[0].weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="Layer '0'"):
        project_(model, 0.5)


def memory():
    """One process that runs out of memory ends the pass in all."""
    model = DistributedDataParallel(small())

    def fail(*_):
        raise MemoryError("no more memory")

    norm = enforce.certified_norm
    is_failing = dist.get_rank() == 0
    enforce.certified_norm = fail if is_failing else norm
    kind = MemoryError if is_failing else ValueError
    for method in ("clip", "scale"):  # a clip needs no norms, but its report does
        bound = SpectralClip(model, 0.5, method=method, example=torch.zeros(EXAMPLE))
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(kind, match="no more memory"):
            bound.apply()
        assert all(torch.equal(x, before[n]) for n, x in model.state_dict().items())
    enforce.certified_norm = norm


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for check in (
        replicas,
        group_given,
        batch_norms,
        shards,
        shards_of_bounded_weights,
        errors,
        memory,
    ):
        check()
    gc.collect()  # else models in cycles keep gloo's threads, which may abort the exit
    dist.destroy_process_group()
