"""The norm of a layer by its matrix, if that is small."""

import numpy as np

from .._arrays.array import Array, adjoint, asarray_like, namespace
from .._arrays.linalg import are_definite
from .._maps.matrix import group_matrices, matrix_shape
from .._maps.matrix_free import Operator
from .bounds import Bounds
from .lanczos import Pair, top_vector, unit_pair
from .peak import NO_PROGRESS
from .rounding import TIGHT, of_matrix
from .top_vectors import pair_derivative


def by_matrix(weight: Array, operator: Operator, rtol: float) -> Bounds:
    """Lanczos for the lower bound, a factorization of the matrix for the upper one."""
    xp, stencil = namespace(weight), operator.stencil
    matrices = group_matrices(weight, stencil)
    pair = _pair_by_lanczos(operator, matrices, rtol / 10)
    rows, columns = matrix_shape(stencil)
    matrices = matrices if rows <= columns else adjoint(matrices)
    gram = xp.matmul(matrices, adjoint(matrices))
    allowance = of_matrix(weight, stencil)
    eye = asarray_like(gram, np.eye(min(rows, columns)))

    def certified(pair: Pair, rtol: float) -> float | None:
        threshold = allowance.threshold(pair.gain, rtol)
        if threshold and not are_definite(threshold**2 * eye - gram).all():
            return None
        return allowance.upper(threshold)

    upper = certified(pair, min(rtol, TIGHT)) or certified(pair, rtol)
    if upper is None:
        pair = _pair_by_eigh(operator, gram)
        upper = certified(pair, min(rtol, TIGHT))
    if upper is None:
        raise ArithmeticError(NO_PROGRESS)
    lower = allowance.lower(pair.gain)
    return Bounds(
        lower, upper, lambda: pair_derivative(operator, pair, weight), "matrix"
    )


def _pair_by_lanczos(operator: Operator, matrices: Array, rtol: float) -> Pair:
    """The top input, found by Lanczos on the matrices, with the operator's own gain."""
    xp, stencil = namespace(matrices), operator.stencil

    def gram(x: Array) -> Array:
        return xp.matmul(adjoint(matrices), xp.matmul(matrices, x))

    shape = (*matrices.shape[::2], 1)
    start = asarray_like(matrices, np.random.default_rng(0).standard_normal(shape))
    x = top_vector(gram, start, rtol=rtol)
    image = xp.reshape(x, (stencil.groups, stencil.in_channels, *stencil.columns))
    return unit_pair(operator.apply, image)


def _pair_by_eigh(operator: Operator, gram: Array) -> Pair:
    """The top singular pair by an eigendecomposition, if Lanczos has missed it."""
    xp, stencil = namespace(gram), operator.stencil
    values, vectors = xp.linalg.eigh(gram)
    group = int(xp.argmax(values[:, -1]))
    rows, columns = matrix_shape(stencil)
    wide = rows <= columns
    shape = (
        (stencil.out_channels, *stencil.rows)
        if wide
        else (stencil.in_channels, *stencil.columns)
    )
    here = asarray_like(gram, np.arange(stencil.groups).reshape(-1, 1) == group)
    top = xp.reshape(here * vectors[group, :, -1][None, :], (stencil.groups, *shape))
    return unit_pair(operator.apply, operator.apply_adjoint(top) if wide else top)
