"""Run by torchrun in two processes: they share a training, and one of them writes."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from experiments import cifar10, figure, runs
from experiments.__main__ import main
from experiments.claims import Claim
from experiments.clipping import Clipping
from experiments.images import Images
from experiments.options import Options
from experiments.processes import is_first
from experiments.record import Record
from experiments.training import Training

CHECKED: list[Clipping | None] = []
save = Training._save


def images(count: int) -> Images:
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), generator=rng)
    return Images(pixels.byte(), torch.arange(count) % 10)


def check_that_weights_are_the_same(self: Training) -> None:
    for parameter in self.network.parameters():
        found = [torch.empty_like(parameter) for _ in range(2)]
        dist.all_gather(found, parameter.detach().contiguous())
        assert torch.equal(*found)
    CHECKED.append(self.recipe.clipping)
    save(self)


def concluded(options: Options, record: Record) -> list[Claim]:
    figure.save(figure.new_figure()[0], options.folder("cifar10"), "cifar10")
    return record.conclude([Claim("it is written once", "1", "1", False)])


def run(out: Path) -> None:
    """Two trainings of two epochs, and what is left of them."""
    Training._save = check_that_weights_are_the_same
    recipe = replace(runs.SETTINGS["small"].recipe, widths=(8, 8), blocks=1, epochs=2)
    tiny = {"small": runs.Setting(8, 40, replace(recipe, batch=16, averaged=1))}
    runs.SETTINGS = cifar10.SETTINGS = tiny
    runs.read_cifar10 = lambda _: (images(40), images(20))
    every = cifar10.recipes_of("small")
    names = "none, seed 0", "0.5, seed 0"
    cifar10.recipes_of = lambda _: {name: every[name] for name in names}
    cifar10.conclude = concluded
    code = main(["cifar10", "--data", str(out), "--out", str(out)])
    assert code == (1 if is_first() else 0), code
    assert [bool(clipping) for clipping in CHECKED] == [False, False, True, True]
    assert not dist.is_initialized()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
