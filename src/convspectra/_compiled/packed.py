"""Two packed storages of Hermitian matrices, and what our routines do with them.

Real and imaginary parts are separate arrays, and only lower triangles count. `Panels`
holds one matrix after the other, `Batched` one matrix per lane of a vector; README.md
has both formats. The methods that both have do the same.
"""

import functools
from typing import Any, TypeAlias

import numpy as np

from .._base import cached

# The largest side of which a vector's worth of matrices stays in the cache.
BATCHED_STORAGE_SIDE = 64
# Steps of Lanczos that tell which matrix has about the largest norm; more for matrices
# above LARGE, whose top eigenvalues are closer together.
STEPS, LARGE, LARGE_STEPS = 16, 192, 24
# Steps between two restarts of Lanczos for a top vector, and the most restarts.
RESTART, RESTARTS = 32, 8
# Relative Lanczos residual at which to stop; the eigenvalue's error is then about
# residual^2 / gap. Who needs more in spite of a small gap takes a decomposition.
CONVERGED = 1e-6
# Bound of the norm of |L| |L|^H, over threshold and root of the side, up to which
# factors are trusted. Gaussian kernels have 2 to 4 with 96 to 512 channels. Any number
# would be sound: a smaller one leaves less to rounding, and refuses more factors.
TRUSTED = 8


class Panels:
    """Matrices one after the other: arrays (count, entries), see `cholesky_panels`.

    Attributes
    ----------
    axis : int
        The axis of the arrays that counts the matrices.
    lanes : int
        Matrices that are factorized together.
    entries : int
        Length of the other axis.
    leading_dimension : int
        Length of a column of H as `set_products` takes it, zeros at the end included.
    additions : int
        Bound on the additions of real numbers on the way to an entry of a Cholesky
        factor L: those that a product meets, with the product itself.
    factor_bound : float
        `has_trusted_factor` accepts L only if this, times the threshold, bounds the
        norm of |L| |L|^H (with absolute values of the entries).
    """

    axis, lanes = 0, 1

    def __init__(self, side: int) -> None:
        from .cholesky_panels import PANEL, layout

        self.side, (self.layout, self.entries, self.rows) = side, layout(side)
        self.leading_dimension = int(self.layout[0, 3])
        # Products of two real parts are summed over a panel, and then panel by panel.
        self.additions = min(2 * PANEL + side // PANEL, 2 * side)
        self.factor_bound = TRUSTED * side**0.5

    def set_products(self, re: np.ndarray, im: np.ndarray, out: np.ndarray) -> None:
        """Set `out`, (2, count, entries), to the products H H^H.

        H is (count, columns, leading_dimension): column by column.
        """
        from .cholesky_panels import gram_panels

        gram_panels(re, im, self.layout, self.rows, *out)

    def from_panels(self, x: np.ndarray) -> np.ndarray:
        """The entries of matrices that are in panels: (count, entries)."""
        return x

    def split_groups(self, x: np.ndarray, groups: int) -> np.ndarray:
        """Matrices for themselves, where those of all groups were one long matrix."""
        return x.reshape(groups * len(x), -1)

    def has_factor(
        self, re: np.ndarray, im: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Where square - G has a Cholesky factor, which overwrites G."""
        return np.isfinite(self._factor_norms(re, im, squares))

    def has_trusted_factor(
        self, re: np.ndarray, im: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Where square - G has a factor within `factor_bound`; may overwrite G."""
        # The norm is at most the largest sum in a row times the largest in a column.
        return self._factor_norms(re, im, squares) <= self.factor_bound * squares

    def _factor_norms(
        self, re: np.ndarray, im: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Bounds of the norms of |L| |L|^H; infinite where there is no factor."""
        from .cholesky_panels import definite_panels

        norms = np.empty(len(re), re.dtype)
        squares = squares.astype(re.dtype)
        definite_panels(re, im, self.layout, self.rows, squares, norms)
        return norms

    def largest_eigenvalues(self, re: np.ndarray, im: np.ndarray) -> np.ndarray:
        """Estimates by a few steps of Lanczos, from below."""
        from .tridiagonal import top_eigenvalues

        start, steps = self._padded(start_vector(self.side)), lanczos_steps(self.side)
        diagonal, off_diagonal, _ = self._lanczos(re, im, start, steps)
        values = np.empty(len(re), re.dtype)
        top_eigenvalues(diagonal, off_diagonal, values)
        return values

    def top_vector(self, re: np.ndarray, im: np.ndarray) -> np.ndarray:
        """The top eigenvector of one matrix, as well as restarted Lanczos finds it."""
        x, steps = self._padded(start_vector(self.side)), min(RESTART, self.side)
        for _ in range(RESTARTS):
            (d,), (e,), basis = self._lanczos(re[None], im[None], x, steps)
            values, vectors = np.linalg.eigh(np.diag(d) + np.diag(e[:-1], -1))
            ritz = vectors[:, -1] @ basis[:-1]
            length = float(np.linalg.norm(ritz))
            if not length:  # the matrix is zero: any vector is a top vector
                break
            x = ritz / length
            if e[-1] * abs(vectors[-1, -1]) <= CONVERGED * values[-1]:
                break
        parts = x.reshape(2, -1)[:, : self.side]
        return parts[0] + 1j * parts[1]

    def _lanczos(
        self, re: np.ndarray, im: np.ndarray, start: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Diagonals and off-diagonals (count, steps), and the last matrix's basis."""
        from .lanczos_panels import lanczos_panels

        basis = np.empty((steps + 1, 2 * self.rows), re.dtype)
        basis[0] = start
        diagonal, off_diagonal = np.empty((2, len(re), steps), re.dtype)
        lanczos_panels(re, im, self.layout, basis, diagonal, off_diagonal)
        return diagonal, off_diagonal, basis

    def _padded(self, x: Any) -> np.ndarray:
        """Real, then imaginary parts of a vector, each with zeros up to `rows`."""
        padded = np.zeros((2, self.rows))
        padded[:, : self.side] = x.real, x.imag
        return padded.ravel()


class Batched:
    """Matrices in the lanes of vectors: arrays (entries, count).

    See `cholesky_batched` for the format, and `Panels` for the attributes.
    """

    axis, lanes = 1, 16

    def __init__(self, side: int) -> None:
        self.side, self.entries = side, side * (side + 1) // 2
        self.additions = 2 * side
        # No check is needed: the norm of |L| |L|^H is at most its trace, which is that
        # of threshold - G, and no entry on the diagonal of G is negative.
        self.factor_bound = float(side)

    @functools.cached_property
    def in_panels(self) -> np.ndarray:
        """Where the entries are in `Panels`."""
        starts = [
            start + np.arange(width) * stride - first
            for first, width, start, stride in Panels(self.side).layout
        ]
        row, column = np.tril_indices(self.side)
        return np.concatenate(starts)[column] + row

    def from_panels(self, x: np.ndarray) -> np.ndarray:
        return x[:, self.in_panels]

    def split_groups(self, x: np.ndarray, groups: int) -> np.ndarray:
        by_group = x.reshape(groups, self.entries, -1)
        by_frequency = by_group.transpose(1, 2, 0).reshape(self.entries, -1)
        return np.ascontiguousarray(by_frequency)  # one frequency's is a view

    def has_trusted_factor(
        self, re: np.ndarray, im: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        from .cholesky_batched import definite_triangles

        ones = np.empty(re.shape[1], re.dtype)
        definite_triangles(re, im, self.side, squares.astype(re.dtype), ones)
        return ones > 0

    def largest_eigenvalues(self, re: np.ndarray, im: np.ndarray) -> np.ndarray:
        from .lanczos_batched import top_triangles

        x, values = start_vector(self.side), np.empty(re.shape[1], re.dtype)
        start = np.array([x.real, x.imag], re.dtype)
        top_triangles(re, im, start, lanczos_steps(self.side), values)
        return values


Storage: TypeAlias = Panels | Batched


@cached(maxsize=256)
def storage_of(side: int) -> Storage:
    """The storage in which single-precision matrices of this side are factorized."""
    return Batched(side) if side <= BATCHED_STORAGE_SIDE else Panels(side)


def lanczos_steps(side: int) -> int:
    """Steps of Lanczos for an estimate of the largest eigenvalue."""
    return LARGE_STEPS if side > LARGE else min(STEPS, 4 + side // 4, side)


@cached(maxsize=None)
def start_vector(side: int) -> Any:
    """A random unit vector from which Lanczos starts, always the same."""
    x = np.random.default_rng(0).standard_normal((side, 2)) @ np.array([1, 1j])
    return x / np.linalg.norm(x)
