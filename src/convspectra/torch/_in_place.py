"""Bring the layers of a model inside a bound, once."""

from typing import Any

from torch import nn

from ._modules import check_has_numbers
from ._pass import Pass, bring_inside
from ._replicas import replicas_of
from ._targets import Bounds, targets_of, uses_in


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
        An input from which the sizes of the layers are learned: a tensor, a tuple of
        arguments, or a dict of keywords. Without one each kernel is clipped on a torus
        that is fine against its size.
    linear : bool
        Whether Linear layers are clipped too.

    Returns
    -------
    Pass
        The norms before and after, of the tori on which the layers were clipped, and
        what was left alone.
    """
    return _at_once(model, max_norm, example, linear, "clip")


def project_(
    model: nn.Module,
    max_norm: Bounds = 1.0,
    example: Any = None,
    *,
    linear: bool = False,
) -> Pass:
    """Move a model's layers to the nearest kernels inside a bound, in place.

    Afterwards each is certainly inside, at the sizes of the example or, without one,
    on inputs of every size. See `convspectra.project`.

    Parameters
    ----------
    model, max_norm, example, linear
        As for `clip_`.

    Returns
    -------
    Pass
        The certified norms before and after, and what was left alone.
    """
    return _at_once(model, max_norm, example, linear, "project")


def _at_once(
    model: nn.Module, max_norm: Bounds, example: Any, linear: bool, method: str
) -> Pass:
    check_has_numbers(model)
    uses, skipped = uses_in(model, example)
    targets, left = targets_of(uses, max_norm, linear=linear, frozen=True)
    return bring_inside(targets, method, replicas_of(model), {}, skipped | left)
