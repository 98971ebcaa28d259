"""Layers whose weights are computed within a bound on their norm."""

from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .._base import size
from .._layer.geometry import Geometry
from .._training import Bounds, check_bounds
from ._modules import KNOWN, check_has_numbers, geometry_of, has_own_forward, unwrapped
from ._record import Use, Uses
from ._scaling import Scaling
from ._targets import bound_of_each, check_not_by_hook, uses_in, without_batch_norms

Module = TypeVar("Module", bound=nn.Module)


def bounded(
    module: Module,
    max_norm: Bounds = 1.0,
    *,
    grid: tuple[int, ...] | None = None,
    example: Any = None,
    linear: bool = False,
    certify: str | int = "eval",
) -> Module:
    """Parametrize a layer, or the layers of a model, so that norms are at most a bound.

    This is a PyTorch parametrization: whenever the weight is used, it is computed by
    scaling the parameter, and gradients flow through the norm (first derivatives only).
    `torch.nn.utils.parametrize.remove_parametrizations(module, "weight")` leaves the
    scaled weight as a plain parameter: do that in evaluation mode.

    Parameters
    ----------
    module : torch.nn.Module
        A convolution or a Linear layer. In any other module, all convolutions are
        bounded, or none if one cannot be.
    max_norm : float, or mapping of str to float or None
        As for `SpectralClip`.
    grid : tuple of int, optional
        The input size for which the bound of a layer holds; by default, every size.
    example : Any
        An input of the model, which determines the input sizes for which the bounds of
        its layers hold, in place of `grid`.
    linear : bool
        Whether to bound the Linear layers of a model, too.
    certify : {"eval", "always"} or int
        When the bound is certified. "eval": in evaluation mode and when exported. In
        training mode the scale comes from an estimate of the norm, by one step of power
        iteration on the layer itself in every call. A number n: every n calls in
        training mode, too, but not under `torch.compile`: a graph counts no calls.
        "always": in every call.

    Returns
    -------
    torch.nn.Module
        The same module.
    """
    check_bounds(max_norm)
    check_has_numbers(module)
    if certify not in ("eval", "always"):
        certify = size("certify", certify, least=1)
    if grid is not None and example is not None:
        raise ValueError("Only one of `grid` and `example` must be given, got both.")
    if grid is not None and not isinstance(unwrapped(module), KNOWN):
        raise ValueError(
            "`grid` must be that of a single layer, but `module` is a "
            f"{type(module).__name__}, whose layers may see different ones. Give an "
            "`example` of its input instead."
        )
    uses = _uses(module, grid, example)
    is_linear = linear or isinstance(module, nn.Linear)
    scalings: dict[tuple[nn.Module, str], Scaling] = {}
    geometries: dict[tuple[nn.Module, str], list[Geometry]] = {}
    bounds = bound_of_each(uses, max_norm, linear=is_linear)
    for use, _ in bounds:
        check_not_by_hook(use)
        geometries.setdefault((use.module, use.attribute), []).append(use.geometry)
    for use, bound in bounds:
        key = (use.module, use.attribute)
        weight: torch.Tensor = getattr(use.module, use.attribute)
        try:
            scalings[key] = Scaling(weight, geometries[key], bound, certify)
        except (ValueError, TypeError) as error:
            raise type(error)(f"Layer {use.name!r}: {error}") from error
    for (owner, attribute), scaling in scalings.items():
        parametrize.register_parametrization(owner, attribute, scaling, unsafe=True)
        scaling.train(owner.training)
    return module


def _uses(module: nn.Module, grid: tuple[int, ...] | None, example: Any) -> Uses:
    """The layers that can be bounded; all that should be can be."""
    if example is not None:
        uses = without_batch_norms(uses_in(module, example))
        computed = {n: why for n, why in uses.skipped.items() if "computes" in why}
        if computed:
            name, why = next(iter(computed.items()))
            raise ValueError(
                f"Every layer must be one that can be bounded: {name}: {why}."
            )
        return uses
    lazy = [m for m in module.modules() if isinstance(m, KNOWN) and is_lazy(m.weight)]
    if lazy:
        raise ValueError(
            "`module` must have a weight, but it is lazy. Call it once first."
        )
    own = isinstance(module, KNOWN)
    uses = uses_in(module, None)
    if not uses.found and not any(isinstance(m, KNOWN) for m in module.modules()):
        raise ValueError(
            "`module` must be a convolution, a Linear, or hold convolutions, got "
            f"{type(module).__name__}."
        )
    odd = [m for m in module.modules() if isinstance(m, KNOWN) and has_own_forward(m)]
    if odd:
        raise ValueError(
            f"A {type(odd[0]).__name__} has a forward of its own. Give an `example` of "
            "the input, which shows what it does with its weight."
        )
    found = [Use(u.name, u.module, geometry_of(u.module, grid)) for u in uses.found]
    convolutions = [u for u in found if own or not isinstance(u.module, nn.Linear)]
    if not convolutions:
        raise ValueError("`module` must hold convolutions, and has Linear layers only.")
    return Uses(found, uses.skipped)
