"""Bound the norms of a model's layers once, in place."""

from typing import Any

from torch import nn

from .._training import Bounds, Pass, check_bounds
from ._modules import check_has_numbers
from ._pass import bound_all
from ._replicas import replicas_of
from ._targets import targets_of, uses_in


def clip_(
    model: nn.Module,
    max_norm: Bounds = 1.0,
    example: Any = None,
    *,
    linear: bool = False,
) -> Pass:
    """Clip the singular values of a model's layers in place; see `convspectra.clip`.

    Parameters
    ----------
    model : torch.nn.Module
    max_norm : float, or mapping of str to float or None
        As for `SpectralClip`.
    example : Any
        An input of the model, which determines the input sizes of its layers: a tensor,
        a tuple of arguments, or a dict of keyword arguments. Without one, each kernel
        is clipped on a circular grid that is large compared to it.
    linear : bool
        Whether to clip Linear layers too.

    Returns
    -------
    Pass
        The norms before and after, of the circular layers that were clipped, and the
        layers that were skipped.
    """
    return _once(model, max_norm, example, linear, "clip")


def project_(
    model: nn.Module,
    max_norm: Bounds = 1.0,
    example: Any = None,
    *,
    linear: bool = False,
) -> Pass:
    """Replace a model's kernels by the nearest ones within a norm bound, in place.

    Afterwards the norm of each layer is certified to be at most its bound, at the input
    sizes of the example or, without one, at every size. See `convspectra.project`.

    Parameters
    ----------
    model, max_norm, example, linear
        As for `clip_`.

    Returns
    -------
    Pass
        The certified norms before and after, and the layers that were skipped.
    """
    return _once(model, max_norm, example, linear, "project")


def _once(
    model: nn.Module, max_norm: Bounds, example: Any, linear: bool, method: str
) -> Pass:
    check_bounds(max_norm)
    check_has_numbers(model)
    uses = uses_in(model, example)
    targets = targets_of(uses, max_norm, linear=linear)
    return bound_all(targets, method, replicas_of(model))
