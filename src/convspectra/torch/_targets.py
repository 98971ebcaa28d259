"""Which parameters of a model are to be bounded, by how much, at which geometries?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .._arrays.host import to_double_device
from .._bound.folded import Folding
from .._layer.geometry import Geometry, per_axis
from .._training import Bounds, bounds_of
from ._layers import Layers, uses_of, uses_on_any_size
from ._modules import as_kernel, batch_norm_gain, unwrapped, whole
from ._record import Use, Uses

NO_BOUND = "no bound applies to it (for a Linear layer: `linear` is False)"
PARAMETRIZED = "its weight is not a parameter: a parametrization computes it"
BY_HOOK = (
    "its weight is not a parameter: a hook sets it, as the old weight_norm and "
    "spectral_norm of torch.nn.utils do. Use those of torch.nn.utils.parametrizations"
)
FROZEN = "its weight is frozen: it needs no gradient"


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A way in which a model applies a kernel: its geometry, and a BatchNorm's gain."""

    geometry: Geometry
    batch_norm: nn.Module | None


@dataclass(slots=True, eq=False)
class Target:
    """A parameter to be bounded, in all views of the layers that share it."""

    name: str
    module: nn.Module
    attribute: str
    max_norm: float
    views: list[View] = field(default_factory=list)

    @property
    def parameter(self) -> torch.Tensor:
        """The module's weight as it is now: it may have been replaced since."""
        parameter = self.module._parameters.get(self.attribute)
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
    def geometries(self) -> list[Geometry]:
        return [view.geometry for view in self.views]

    @property
    def is_folded(self) -> bool:
        """Whether a BatchNorm is part of what is bounded."""
        return any(view.batch_norm is not None for view in self.views)

    def foldings(self) -> list[Folding]:
        """The views by their BatchNorms, with the gains that these have now."""
        by_norm: dict[nn.Module | None, list[Geometry]] = {}
        for view in self.views:
            by_norm.setdefault(view.batch_norm, []).append(view.geometry)
        return [
            Folding(None if norm is None else _double(batch_norm_gain(norm)), seen)
            for norm, seen in by_norm.items()
        ]

    @property
    def cost(self) -> float:
        """The time that it takes to bound, up to a common factor: about."""
        rows, columns = self.parameter.shape[:2]
        sites = sum(_sites(view.geometry) for view in self.views)
        return float(rows * columns * min(rows, columns) * sites)


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The parameters to be bounded, and the layers that are skipped, with reasons."""

    found: list[Target]
    skipped: dict[str, str]


def targets_of(uses: Uses, max_norm: Bounds, *, linear: bool) -> Targets:
    """What is to be bounded of the layers that a model uses: all that are trained."""
    found: dict[torch.Tensor, Target] = {}
    bounds = bound_of_each(uses, max_norm, linear=linear)
    wanted = {use.name for use, _ in bounds}
    skipped = dict(uses.skipped)
    skipped |= {use.name: NO_BOUND for use in uses.found if use.name not in wanted}
    for use, bound in bounds:
        parameter = use.module._parameters.get(use.attribute)
        if parameter is None:
            plain = not is_parametrized(use.module, use.attribute)
            skipped[use.name] = BY_HOOK if plain else PARAMETRIZED
            continue
        if not parameter.requires_grad:
            skipped[use.name] = FROZEN
            continue
        new = Target(use.name, use.module, use.attribute, bound)
        target = found.setdefault(parameter, new)
        target.max_norm = min(target.max_norm, bound)
        view = View(use.geometry, use.batch_norm and use.batch_norm[1])
        known = ((each.geometry, each.batch_norm) for each in target.views)
        if (view.geometry, view.batch_norm) not in known:
            target.views.append(view)
    if bounds and all(skipped.get(use.name) == FROZEN for use, _ in bounds):
        raise ValueError(
            "The model must have weights to bound, but all of its layers are frozen. "
            "Call `model.requires_grad_(True)` first."
        )
    return Targets(list(found.values()), skipped)


def bound_of_each(
    uses: Uses, max_norm: Bounds, *, linear: bool
) -> list[tuple[Use, float]]:
    """The layers that are to be bounded, with their bounds."""
    names = [use.name for use in uses.found]
    left_out = [not linear and isinstance(use.module, nn.Linear) for use in uses.found]
    bounds = bounds_of(names, max_norm, uses.skipped, dense="Linear", left_out=left_out)
    return [
        (use, bound)
        for use, bound, is_left_out in zip(uses.found, bounds, left_out)
        if bound is not None and not is_left_out
    ]


def uses_in(model: nn.Module, example: Any) -> Uses:
    """The layers of a model on an example; on inputs of any size if there is none."""
    model = unwrapped(model)
    if isinstance(example, Layers):
        return uses_among(example, model)
    if example is None:
        return uses_on_any_size(model)
    return uses_of(model, *arguments(example))


def uses_among(found: Layers, model: nn.Module) -> Uses:
    """What `layers` has found in a model: in this very one, which is not wrapped."""
    own = set(model.modules())
    for use in found.uses:
        if use.module not in own:
            raise ValueError(
                "`example` must be what `layers` returns for this model, but its layer "
                f"{use.name!r} belongs to another one, perhaps a copy. Call `layers` "
                "with this model."
            )
    return Uses(list(found.uses), found.skipped)


def without_batch_norms(uses: Uses) -> Uses:
    """The same, if they are uses of kernels alone."""
    for use in uses.found:
        if use.batch_norm is not None:
            raise ValueError(
                "`example` must be without `fold_batch_norm`, but its layer "
                f"{use.name!r} includes a BatchNorm, and only its kernel would be "
                "bounded. Call `layers` without it, or use SpectralClip or project_, "
                "which bound both together."
            )
    return uses


def check_not_by_hook(use: Use) -> None:
    """Refuse a weight that is neither a parameter nor made by a parametrization."""
    is_parameter = use.module._parameters.get(use.attribute) is not None
    if not is_parameter and not is_parametrized(use.module, use.attribute):
        raise ValueError(
            f"The weight of layer {use.name!r} must be a parameter or made by a "
            "parametrization, but it is set by a hook. Use the functions of "
            "torch.nn.utils.parametrizations instead."
        )


def arguments(example: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What a model is called with: positional arguments and keywords."""
    if isinstance(example, Mapping):
        return (), example
    return tuple(example) if isinstance(example, (tuple, list)) else (example,), {}


def _double(gain: torch.Tensor) -> torch.Tensor:
    return to_double_device(gain.detach()).double()


def _sites(geometry: Geometry) -> int:
    """How many outputs a channel has; 1 if the grid is not known."""
    if geometry.grid is None:
        return 1
    sides = zip(per_axis(geometry.grid, 1), per_axis(geometry.stride, 1))
    return math.prod(-(-n // s) for n, s in sides)
