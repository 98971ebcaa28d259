"""The routes of `clip` and `project`."""

from .._layer.stencil import Stencil
from .._maps.matrix import matrix_entries
from .norm import method_of

# Entries of the largest matrix that `project` decomposes, in each of its rounds.
PROJECT_MATRIX_LIMIT = 2**18
# Soft-thresholding many matrices at once: the largest side of which a vector's worth
# stays in the cache, and the fewest matrices that are worth a vector.
COMPILED_CLIP_SIDE, COMPILED_CLIP_COUNT = 256, 4


def clip_is_compiled(
    matrices: int, side: int, *, real: bool, on_host: bool, raises: bool
) -> bool:
    """Whether our own routine soft-thresholds the matrices of a clip.

    If not, `clip` takes eigenvectors of their Gram matrices, or all singular vectors if
    small values are to be raised.
    """
    small = side <= COMPILED_CLIP_SIDE and matrices >= COMPILED_CLIP_COUNT
    return small and real and on_host and not raises


def projects_by_matrix(stencil: Stencil) -> bool:
    """Whether `project` works on the layer's own matrix, not on a torus around it."""
    small = method_of(stencil) == "matrix"
    return small and matrix_entries(stencil) <= PROJECT_MATRIX_LIMIT
