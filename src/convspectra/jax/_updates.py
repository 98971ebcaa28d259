"""Which update brings a kernel within its bound, once it is rounded and added?"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._arrays.array import frobenius_norm, spacing, to_double
from .._arrays.host import with_one_thread
from .._bound.enforce import enforce, largest_norm, norm_lipschitz
from ._trees import Target

# A kernel may be scaled down by so much, relative, for rounding that nobody has
# measured. Half precision would need more, and has its norm certified again.
MOST_SPARED = 1e-4
# Most norms that are certified for one update. An update of half precision brings a
# kernel only so near to zero: from far above the bound, the next ones go on.
ROUNDS = 12


def certified_update(
    target: Target, method: str, kernel: Any, update: Any
) -> np.ndarray:
    """The update after which a kernel is certified to satisfy its bound, on the host.

    Both are in the layout of `Layer`. The update stays if the bound then holds.
    """
    kernel, update = np.asarray(kernel), np.asarray(update)
    proposed = _applied(kernel, update)
    if not np.all(np.isfinite(proposed)):  # under `jit` no error can be raised
        return np.full_like(update, np.nan)

    def moved(proposed: np.ndarray) -> np.ndarray:
        geometries, max_norm = target.geometries, target.max_norm
        found = enforce(proposed, geometries, max_norm, method, in_training=True)
        if not found.is_changed:
            return update
        return _update_to(target, method, kernel, update, found.weight)

    return with_one_thread(moved, proposed)


def _update_to(
    target: Target,
    method: str,
    kernel: np.ndarray,
    update: np.ndarray,
    inside: np.ndarray,
) -> np.ndarray:
    """The update to a kernel within the bound, or below it by as much as it takes."""

    def update_to(factor: float) -> np.ndarray:
        change = to_double(inside) * factor - to_double(kernel)
        return change.astype(update.dtype)

    spared = _most_by_rounding(target, kernel, update, inside) / target.max_norm
    if spared <= MOST_SPARED:
        return update_to(1 - spared)
    found, factor = update_to(1.0), 1.0
    margin = max(spacing(kernel), spacing(update))
    for _ in range(ROUNDS):
        applied = _applied(kernel, found)
        upper = largest_norm(applied, target.geometries, method)
        if upper <= target.max_norm:
            break
        factor *= target.max_norm / upper * (1 - margin)
        margin = min(2 * margin, 0.5)
        found = update_to(factor)
    return found


def _applied(kernel: np.ndarray, update: np.ndarray) -> np.ndarray:
    """The sum, rounded as `optax.apply_updates` rounds it."""
    wide = jnp.promote_types(kernel.dtype, update.dtype)
    return (kernel.astype(wide) + update.astype(wide)).astype(kernel.dtype)


def _most_by_rounding(
    target: Target, kernel: np.ndarray, update: np.ndarray, inside: np.ndarray
) -> float:
    """The most that rounding adds to the norm.

    What is applied is kernel + (inside - kernel). The difference is rounded by at most
    half a spacing times |kernel| + |inside|, and the sum by as much times |inside|;
    updates may be less precise than the kernel. A whole spacing covers what is computed
    here as well.
    """
    lipschitz = max(norm_lipschitz(inside, g) for g in target.geometries)
    lengths = frobenius_norm(to_double(kernel)) + 2 * frobenius_norm(to_double(inside))
    return lipschitz * max(spacing(kernel), spacing(update)) * lengths
