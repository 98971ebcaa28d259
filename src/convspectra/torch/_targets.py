"""Which parameters of a model are to be bounded, by how much, at which geometries?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from .._base import positive
from .._layer.geometry import Geometry, per_axis
from ._layers import Layers, recorded, uses_of, uses_on_any_size
from ._modules import as_kernel, is_compiled, unwrapped, whole
from ._record import Recorder, Use, Uses

NO_BOUND = "no bound applies to it (for a Linear layer: `linear` is False)"

Bounds = float | Mapping[str, float | None]


@dataclass(slots=True, eq=False)
class Target:
    """A parameter to be bounded, at all geometries of the layers that share it."""

    name: str
    module: nn.Module
    max_norm: float
    geometries: list[Geometry] = field(default_factory=list)

    @property
    def parameter(self) -> torch.Tensor:
        """The module's weight as it is now: it may have been replaced since."""
        parameter = self.module._parameters.get("weight")
        if parameter is None:
            raise ValueError(
                f"The weight of layer {self.name!r} must still be a parameter, but it "
                "no longer is. Make a new SpectralClip after adding a parametrization."
            )
        return parameter

    def kernel(self) -> torch.Tensor:
        """The whole kernel; if it is sharded, all processes must call this."""
        return as_kernel(whole(self.parameter.detach()))

    @property
    def cost(self) -> float:
        """The time that it takes to bound, up to a common factor: about."""
        rows, columns = self.parameter.shape[:2]
        sites = sum(_sites(geometry) for geometry in self.geometries)
        return float(rows * columns * min(rows, columns) * sites)


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The parameters to be bounded, and the layers that are skipped, with reasons."""

    found: list[Target]
    skipped: dict[str, str]


def targets_of(uses: Uses, max_norm: Bounds, *, linear: bool, frozen: bool) -> Targets:
    """What is to be bounded of the layers that a model uses.

    `linear` and `frozen` say whether to bound Linear layers, and parameters that need
    no gradient.
    """
    found: dict[torch.Tensor, Target] = {}
    bounds = bound_of_each(uses, max_norm, linear=linear)
    wanted = {use.name for use, _ in bounds}
    skipped = dict(uses.skipped)
    skipped |= {use.name: NO_BOUND for use in uses.found if use.name not in wanted}
    for use, bound in bounds:
        parameter = use.module._parameters.get("weight")
        if parameter is None:
            skipped[use.name] = (
                "its weight is not a parameter: a parametrization computes it"
            )
            continue
        if not (parameter.requires_grad or frozen):
            skipped[use.name] = "its weight is frozen"
            continue
        target = found.setdefault(parameter, Target(use.name, use.module, bound))
        target.max_norm = min(target.max_norm, bound)
        if use.geometry not in target.geometries:
            target.geometries.append(use.geometry)
    return Targets(list(found.values()), skipped)


def bound_of_each(
    uses: Uses, max_norm: Bounds, *, linear: bool
) -> list[tuple[Use, float]]:
    """The layers that are to be bounded, with their bounds."""
    bounds = _checked(max_norm, [use.name for use in uses.found])
    found = ((use, _bound(bounds, use.name)) for use in uses.found)
    return [
        (use, bound)
        for use, bound in found
        if bound is not None and (linear or not isinstance(use.module, nn.Linear))
    ]


def uses_in(model: nn.Module, example: Any) -> Uses:
    """The layers of a model on an example; on inputs of any size if there is none."""
    model = unwrapped(model)
    if isinstance(example, Layers):
        return Uses(list(example.uses), example.skipped)
    if example is None:
        return uses_on_any_size(model)
    if isinstance(example, Mapping):
        return uses_of(model, (), example)
    args = example if isinstance(example, (tuple, list)) else (example,)
    return uses_of(model, tuple(args), {})


class Watch:
    """The layers of a model, recorded while it is called for other reasons."""

    def __init__(self, model: nn.Module) -> None:
        if is_compiled(model):
            raise ValueError(
                "The layers of a compiled model cannot be recorded while it runs: pass "
                "an `example` of its input, which determines their input sizes."
            )
        self.model = unwrapped(model)
        self.recorder = Recorder(self.model)

    def uses(self) -> Uses:
        """What was recorded so far; nothing more is recorded then."""
        uses = recorded(self.model, self.recorder)
        if not uses.found:
            raise RuntimeError(
                "The model must have run, uncompiled, before its layers can be "
                "bounded, and it has not. Call it, or pass an `example` of its input."
            )
        self.recorder.close()
        return uses


def _checked(max_norm: Bounds, names: Sequence[str]) -> Mapping[str, float | None]:
    """Bounds by pattern, each of which matches a layer."""
    bounds = max_norm if isinstance(max_norm, Mapping) else {"*": max_norm}
    if not names:
        raise ValueError(
            "The model must have convolutions or Linear layers, but it has none."
        )
    for pattern, bound in bounds.items():
        if bound is not None:
            positive("max_norm", bound)
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"Every pattern of `max_norm` must match a layer, but {pattern!r} "
                f"matches none of {', '.join(names)}."
            )
    return bounds


def _bound(bounds: Mapping[str, float | None], name: str) -> float | None:
    """The bound of the first pattern that a name matches."""
    matches = (bound for pattern, bound in bounds.items() if fnmatchcase(name, pattern))
    return next(matches, None)


def _sites(geometry: Geometry) -> int:
    """How many outputs a channel has; 1 if the grid is not known."""
    if geometry.grid is None:
        return 1
    sides = zip(per_axis(geometry.grid, 1), per_axis(geometry.stride, 1))
    return math.prod(-(-n // s) for n, s in sides)
