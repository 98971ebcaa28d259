"""Bring the layers of a model inside a bound, once."""

import keras

from .._training import Bounds, Pass
from ._pass import bring_inside


def clip_(
    model: keras.layers.Layer, max_norm: Bounds = 1.0, *, linear: bool = False
) -> Pass:
    """Clip the singular values of a model's layers in place; see `convspectra.clip`.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        It must be built. The input sizes of its layers are those of `layers`; a kernel
        whose size is not known is clipped on a torus that is fine enough for its size.
    max_norm : float, or mapping of str to float or None
        As for `SpectralClip`.
    linear : bool
        Whether to clip Dense layers too. Frozen layers are never clipped.

    Returns
    -------
    Pass
        The norms before and after, of the tori on which the layers were clipped, and
        the layers that were left unchanged.
    """
    return bring_inside(model, max_norm, "clip", linear=linear)


def project_(
    model: keras.layers.Layer, max_norm: Bounds = 1.0, *, linear: bool = False
) -> Pass:
    """Move a model's layers to the nearest kernels within a bound, in place.

    Afterwards every layer is certified to be within its bound, at the input sizes of
    `layers` or, where they are not known, at every size. See `convspectra.project`.

    Parameters
    ----------
    model, max_norm, linear
        As for `clip_`.

    Returns
    -------
    Pass
        The certified norms before and after, and the layers that were left unchanged.
    """
    return bring_inside(model, max_norm, "project", linear=linear)
