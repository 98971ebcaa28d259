"""A short training, with the norms of all layers just before and just after a clip."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

import convspectra as cs

from .clipping import Clipping
from .options import Options
from .processes import rank
from .runs import SETTINGS, Setting, network_file, prepared_file, read_prepared
from .training import Training

SEED = 0
EVERY = {"small": 20, "paper": 100}  # steps from clip to clip
TRAININGS = {
    "small": Setting(
        side=16,
        images=3840,
        recipe=replace(SETTINGS["small"].recipe, blocks=1, batch=64, epochs=5),
    ),
    "paper": SETTINGS["paper"],
}


def train(options: Options, folder: Path, name: str, bound: float | None) -> Any:
    """Train, and note every layer's norms just before and just after each clip.

    Notes are in a file beside the network's, one for each process of a torchrun. A
    killed training goes on from its last epoch, and forgets what it noted after that.
    """
    setting = TRAININGS[options.scale]
    clipping = None if bound is None else Clipping(bound, EVERY[options.scale])
    recipe = replace(setting.recipe, seed=SEED, clipping=clipping, averaged=1)
    recipe = replace(recipe, evaluate_every=recipe.epochs)
    file = network_file(folder, name)
    notes = file.with_suffix(f".{rank()}.jsonl")

    def watch(step: int, layer: cs.Layer, before: Tensor) -> None:
        line: dict[str, Any] = {"name": layer.name, "step": step}
        for when, weight in (("before", before), ("after", layer.weight)):
            kernel = weight.detach().cpu().numpy()
            upper = cs.operator_norm(kernel, layer.geometry, rtol=1e-3).upper
            line[when] = round(float(upper), 5)
        with notes.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")

    training = Training(
        recipe,
        *read_prepared(prepared_file(options, setting.side, setting.images)),
        saved=file,
        device=options.device,
        watch=watch,
    )
    done = len(training.log) * training.steps_per_epoch
    kept = [line for line in _read(notes) if line["step"] <= done]
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text("".join(json.dumps(line) + "\n" for line in kept))
    error = training.run(name)["error"]
    norms: dict[str, dict[str, list[float]]] = {}
    for line in _read(notes):
        found = norms.setdefault(line["name"], {"step": [], "before": [], "after": []})
        for key, values in found.items():
            values.append(line[key])
    return {"bound": bound, "error": error, "norms": norms}


def _read(notes: Path) -> list[dict[str, Any]]:
    if not notes.exists():
        return []
    whole = notes.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]
