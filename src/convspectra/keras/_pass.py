"""One pass over the kernels of a model that bounds the norm of each of them."""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np

from .._arrays.host import one_thread
from .._arrays.threads import spread
from .._bound.enforce import Enforced, enforce
from .._bound.folded import Folding, enforce_folded, folded_norm
from .._checkpoint.keras_config import from_layer
from .._layer.geometry import Geometry
from .._training import Bounds, Change, Pass, bounds_of
from ._record import Recorder, Use, batch_norm_gain, check_is_built

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
    uses: list[Use] = field(default_factory=list)

    @property
    def geometries(self) -> list[Geometry]:
        return list(dict.fromkeys(use.geometry for use in self.uses))

    def foldings(self) -> list[Folding]:
        """The geometries by the BatchNorms there, with the gains of the moment."""
        by_norm: dict[Any, dict[Geometry, None]] = {}
        for use in self.uses:
            by_norm.setdefault(use.batch_norm, {})[use.geometry] = None
        return [
            Folding(
                None if norm is None else batch_norm_gain(norm).astype(float), [*seen]
            )
            for norm, seen in by_norm.items()
        ]

    def enforced(self, method: str, *, in_training: bool) -> Enforced:
        """The kernel inside its bound, with the BatchNorms that are part of it."""
        if all(use.batch_norm is None for use in self.uses):
            return enforce(
                self.kernel,
                self.geometries,
                self.max_norm,
                method,
                in_training=in_training,
            )
        return enforce_folded(
            self.kernel, self.foldings(), self.max_norm, method, in_training=in_training
        )

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
    fold_batch_norm: bool = False,
    in_training: bool = False,
) -> Pass:
    """Bring the kernels of a model inside their bounds; all of them, or none.

    `linear` says whether Dense layers are among them. Frozen weights are not. With
    `fold_batch_norm`, a layer and the BatchNormalization after it are one map.
    `in_training` is what it is for `enforce`.
    """
    start = time.perf_counter()
    check_is_built(model)
    recorder = Recorder(model, batch_norms=fold_batch_norm)
    _check_folds(recorder)
    targets, skipped = targets_of(recorder, max_norm, linear=linear)
    made: dict[int, Enforced] = {}
    wrong: dict[int, str] = {}

    def some(first: int, stop: int) -> None:
        for number in range(first, stop):
            target = targets[number]
            try:
                made[number] = target.enforced(method, in_training=in_training)
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


def _check_folds(recorder: Recorder) -> None:
    """Refuse a model with a BatchNorm that its bounds might miss."""
    if recorder.not_folded:
        whys = "".join(f" {name}: {why}." for name, why in recorder.not_folded.items())
        raise ValueError(
            "With `fold_batch_norm`, it must be known what comes before each "
            f"BatchNormalization, but it is not.{whys} Make functional or Sequential "
            "models of such layers, or leave out `fold_batch_norm`."
        )


def targets_of(
    recorder: Recorder, max_norm: Bounds, *, linear: bool
) -> tuple[list[Target], dict[str, str]]:
    """The kernels to be bounded, and why others are not."""
    found: dict[int, Target] = {}
    uses, skipped = recorder.uses, dict(recorder.skipped)
    names = [use.name for use in uses]
    left_out = [use.role == "dense" and not linear for use in uses]
    bounds = bounds_of(names, max_norm, skipped, dense="Dense", left_out=left_out)
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
        target.uses.append(use)
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
        before = partial(folded_norm, target.kernel, target.foldings(), method)
    if after is None:
        after = partial(folded_norm, found.weight, target.foldings(), method)
    return Change(target.name, before, after, target.max_norm)
