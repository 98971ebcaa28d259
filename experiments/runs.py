"""The trainings of an experiment: on which images, by which recipes, saved where."""

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import write

from .images import Images, prepared, read_cifar10
from .options import Options
from .processes import world_size
from .record import RESULT, Record
from .training import Recipe, Training
from .units import run_units

# The published decays of the rate, near epochs 120 and 157 of 250.
MILESTONES, FACTOR = (120 / 250, 157 / 250), 0.1
ALL = 50_000  # training images of CIFAR-10


@dataclass(frozen=True, slots=True)
class Setting:
    """The images of an experiment, the network and the training without clipping.

    `images` training images, averaged to `side` x `side` pixels. The recipe's seed is
    replaced by those of the runs.
    """

    side: int
    images: int
    recipe: Recipe

    @property
    def steps_per_epoch(self) -> int:
        """With a last batch that may be smaller."""
        return -(-self.images // self.recipe.batch)

    def every(self, steps: int = 100) -> int:
        """How many steps are the part of an epoch that `steps` are of a published one.

        With fewer images an epoch has fewer steps: so many passes of clipping fall on
        every epoch, and on every decay of the rate, as in the paper.
        """
        return max(1, round(steps * self.images / ALL))


SETTINGS = {
    "paper": Setting(
        32,
        ALL,
        Recipe(0, (36, 72, 144), 5, True, 4, 250, 128, 0.1, MILESTONES, FACTOR, None),
    ),
    "small": Setting(
        16,
        10_000,
        Recipe(
            seed=0,
            widths=(16, 32, 64),
            blocks=2,
            batch_norm=True,
            shift=2,
            epochs=125,
            batch=128,
            rate=0.1,
            milestones=MILESTONES,
            factor=FACTOR,
            clipping=None,
            evaluate_every=5,
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One training, with everything that another process needs to do it."""

    name: str
    recipe: Recipe
    images: Path
    saved: Path | None
    device: str


def train_all(
    options: Options,
    record: Record,
    setting: Setting,
    recipes: Mapping[str, Recipe],
    *,
    keep_networks: bool,
) -> None:
    """Train by every recipe whose result is not in the record yet.

    With `keep_networks`, each network is in the experiment's folder, under
    `network_file`, saved after every epoch.
    """
    folder = options.folder(record.document["experiment"])
    images = prepared_file(options, setting.side, setting.images)
    runs = {
        name: Run(
            name,
            recipe,
            images,
            network_file(folder, name) if keep_networks else None,
            options.device,
        )
        for name, recipe in recipes.items()
    }
    run_units(options, record, runs, train)


def train(run: Run) -> dict[str, Any]:
    """Do one training, and return its result."""
    images, test = read_prepared(run.images)
    training = Training(run.recipe, images, test, saved=run.saved, device=run.device)
    return training.run(run.name)


def network_file(folder: Path, run: str) -> Path:
    """Where the network of a run is."""
    return folder / "runs" / f"{run.replace(' ', '_').replace(',', '')}.pt"


def prepared_file(options: Options, side: int, count: int) -> Path:
    """The file of images as networks take them, made from CIFAR-10 if not there yet."""
    path = options.out / "images" / f"cifar10_{side}x{side}_{count}.pt"
    if not path.exists():
        images, test = read_cifar10(options.data_folder())
        parts = prepared(images, side=side, count=count), prepared(test, side=side)
        buffer = io.BytesIO()
        torch.save([[*part] for part in parts], buffer)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, buffer.getvalue())
    return path


def read_prepared(path: Path) -> tuple[Images, Images]:
    """The images for training and those for the test, from a prepared file."""
    train, test = torch.load(path, weights_only=True)
    return Images(*train), Images(*test)


def settings_of(
    options: Options, setting: Setting, recipes: Mapping[str, Recipe]
) -> dict[str, Any]:
    """What decides the results of trainings, for the record."""
    return {
        "scale": options.scale,
        "device": options.device,
        "processes": world_size(),
        "side": setting.side,
        "images": setting.images,
        "parameters": parameters(setting.recipe),
        "recipes": {name: asdict(recipe) for name, recipe in recipes.items()},
    }


def trained_by(options: Options, experiment: str) -> dict[str, Any] | None:
    """The record of an experiment that trains, of the same scale, in the same --out.

    None if it is not there.
    """
    path = options.folder(experiment) / RESULT
    if not path.exists():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    if (scale := document["settings"]["scale"]) != options.scale:
        raise ValueError(
            f"{str(path)!r} must be of the scale {options.scale!r}, got {scale!r}. "
            f"Name the folder of another `{experiment}` with --out."
        )
    return document


def parameters(recipe: Recipe) -> int:
    """The number of parameters of a recipe's network."""
    from .network import made

    network = made(recipe.widths, recipe.blocks, recipe.batch_norm, 0)
    return sum(math.prod(p.shape) for p in network.parameters())
