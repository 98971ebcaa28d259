"""One pass over the kernels of a model that bounds the norm of each of them."""

import time
from dataclasses import dataclass, field
from functools import partial

import keras
import numpy as np

from .._arrays.host import one_thread
from .._arrays.threads import spread
from .._bound.enforce import Enforced, enforce, largest_norm
from .._checkpoint.keras_config import from_layer
from .._layer.geometry import Geometry
from .._training import Bounds, Change, Pass, bounds_of
from ._record import Recorder, Use, check_is_built

NO_BOUND = "no bound is asked for it"
FROZEN = "its weight is frozen"
IS_DENSE = "it is a Dense layer, and `linear` is False"


@dataclass(slots=True, eq=False)
class Target:
    """A kernel to be bounded, at all geometries that it is used at."""

    name: str
    role: str
    variable: keras.Variable
    max_norm: float
    kernel: np.ndarray
    geometries: list[Geometry] = field(default_factory=list)

    def write(self, kernel: np.ndarray) -> None:
        """Put other numbers into the model."""
        turned = from_layer(self.role, kernel, tuple(self.variable.shape))
        if turned.dtype.name == "bfloat16":  # which not all backends take from NumPy
            turned = turned.astype("float32")
        self.variable.assign(turned)


def bring_inside(
    model: keras.layers.Layer,
    max_norm: Bounds,
    method: str,
    *,
    linear: bool,
    in_training: bool = False,
) -> Pass:
    """Bring the kernels of a model inside their bounds; all of them, or none.

    `linear` says whether Dense layers are among them. Frozen weights are not.
    `in_training` is what it is for `enforce`.
    """
    start = time.perf_counter()
    check_is_built(model)
    recorder = Recorder(model, batch_norms=False)
    targets, skipped = targets_of(recorder, max_norm, linear=linear)
    made: dict[int, Enforced] = {}
    wrong: dict[int, str] = {}

    def some(first: int, stop: int) -> None:
        for number in range(first, stop):
            target = targets[number]
            try:
                made[number] = enforce(
                    target.kernel,
                    target.geometries,
                    target.max_norm,
                    method,
                    in_training=in_training,
                )
            except (ValueError, TypeError) as error:
                wrong[number] = f"Layer {target.name!r}: {error}"

    if targets:
        with one_thread(targets[0].kernel):
            spread(some, len(targets))
    if wrong:
        raise ValueError("\n".join(wrong[number] for number in sorted(wrong)))
    changes = tuple(_change(t, method, made[i]) for i, t in enumerate(targets))
    for number, target in enumerate(targets):
        if made[number].is_changed:
            target.write(made[number].weight)
    return Pass(changes, skipped, time.perf_counter() - start)


def targets_of(
    recorder: Recorder, max_norm: Bounds, *, linear: bool
) -> tuple[list[Target], dict[str, str]]:
    """The kernels to be bounded, and why others are not."""
    found: dict[int, Target] = {}
    uses, skipped = recorder.uses, dict(recorder.skipped)
    names = [use.name for use in uses]
    bounds = bounds_of(names, max_norm, skipped, dense="Dense")
    for use, bound in zip(uses, bounds):
        reason = _reason(use, bound, linear=linear)
        if reason or bound is None or use.variable is None:
            skipped[use.name] = reason
            continue
        target = found.setdefault(
            id(use.variable),
            Target(use.name, use.role, use.variable, bound, use.kernel),
        )
        target.max_norm = min(target.max_norm, bound)
        if use.geometry not in target.geometries:
            target.geometries.append(use.geometry)
    if not found and FROZEN in skipped.values():
        raise ValueError(
            "The model must have weights to bound, but all of them are frozen. "
            "Set `trainable = True` for those that are to be bounded."
        )
    return list(found.values()), skipped


def _reason(use: Use, bound: float | None, *, linear: bool) -> str:
    """Why a kernel is left alone; empty if it is not."""
    if bound is None:
        return NO_BOUND
    if use.role == "dense" and not linear:
        return IS_DENSE
    if use.variable is None:
        return "its kernel is computed from other weights"
    return "" if use.variable.trainable else FROZEN


def _change(target: Target, method: str, found: Enforced) -> Change:
    """What was done to a kernel; norms that are not known wait to be asked for."""
    before, after = found.before, found.after
    if before is None:
        before = partial(largest_norm, target.kernel, target.geometries, method)
    if after is None:
        after = partial(largest_norm, found.weight, target.geometries, method)
    return Change(target.name, before, after, target.max_norm)
