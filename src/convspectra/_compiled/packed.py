"""Two ways to hold Hermitian matrices in memory, and what our kernels read off them.

Real and imaginary parts are apart, and only lower triangles count. Large matrices lie
one after the other, small ones side by side in the lanes of vectors.
"""

from typing import Any, Protocol

import numpy as np

from .._base import cached

SIDE_BY_SIDE = 64  # the side of matrices of which a vector's worth stays in the cache
STEPS, LARGE = 16, 192  # of Lanczos that tell which matrix has the largest norm,
LARGE_STEPS = 24  # and if they are large
RESTART, RESTARTS = 32, 8  # steps of Lanczos for a vector, and how often at most
CONVERGED = 1e-6  # what is left over, over the eigenvalue: of that the square is lost,
# over the gap to the next one (who needs more in spite of a small gap decomposes)
# Bound of the norm of |L| |L|^H, over threshold and root of the side, up to which
# factors are trusted. Gaussian kernels have 2 to 4 with 96 to 512 channels. Any number
# would be sound: a smaller one leaves less to rounding, and refuses more factors.
TRUSTED = 8


class Form(Protocol):
    """A way to hold matrices of one side.

    Attributes
    ----------
    axis : int
        The axis of the arrays along which there is one matrix after the other.
    numbers : int
        Along the other axis.
    additions : int
        On the way to an entry of a Cholesky factor L, at most, of real numbers: those
        that a product meets, with the product itself.
    most : float
        A bound of |L| |L|^H in norm, with absolute values, over the level; as computed,
        or (for a trace) if no number on the diagonal of G is negative.
    """

    axis: int
    side: int
    numbers: int
    additions: int
    most: float

    def of_panels(self, x: np.ndarray) -> np.ndarray:
        """The numbers of matrices that are in panels: (count, numbers)."""
        ...

    def apart(self, x: np.ndarray, groups: int) -> np.ndarray:
        """Matrices of this form, from those of groups that are together in one."""
        ...

    def bounded(self, re: np.ndarray, im: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """Where level - G has a factor L within the bound; may overwrite G."""
        ...

    def tops(self, re: np.ndarray, im: np.ndarray) -> np.ndarray:
        """What the largest eigenvalues are about, by Lanczos and from below."""
        ...


class Panels:
    """Matrices as `cholesky_panels` has them: (count, numbers)."""

    axis = 0

    def __init__(self, side: int) -> None:
        from .cholesky_panels import PANEL, layout

        self.side, (self.layout, self.numbers, self.rows) = side, layout(side)
        self.column = int(self.layout[0, 3])  # numbers that the first takes
        # Products of two real parts are summed over a panel, and then panel by panel.
        self.additions = min(2 * PANEL + side // PANEL, 2 * side)
        self.most = TRUSTED * side**0.5

    def set_products(self, re: np.ndarray, im: np.ndarray, found: np.ndarray) -> None:
        """Set `found` to products of matrices with their adjoints: (2, count, numbers).

        These are (count, columns, column): column by column, filled up with zeros.
        """
        from .cholesky_panels import gram_panels

        gram_panels(re, im, self.layout, self.rows, *found)

    def of_panels(self, x: np.ndarray) -> np.ndarray:
        return x

    def apart(self, x: np.ndarray, groups: int) -> np.ndarray:
        return x.reshape(groups * len(x), -1)

    def definite(
        self, re: np.ndarray, im: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Where square - G has a Cholesky factor; overwrites G by it."""
        return np.isfinite(self._sizes(re, im, squares))

    def bounded(self, re: np.ndarray, im: np.ndarray, levels: np.ndarray) -> np.ndarray:
        # The norm is at most the largest sum in a row times the largest in a column.
        return self._sizes(re, im, levels) <= self.most * levels

    def _sizes(self, re: np.ndarray, im: np.ndarray, squares: np.ndarray) -> np.ndarray:
        from .cholesky_panels import definite_panels

        found = np.empty(len(re), re.dtype)
        squares = squares.astype(re.dtype)
        definite_panels(re, im, self.layout, self.rows, squares, found)
        return found

    def tops(self, re: np.ndarray, im: np.ndarray) -> np.ndarray:
        start = self._filled_up(first_vector(self.side))
        return tops_of_tridiagonal(*self._lanczos(re, im, start, steps(self.side))[:2])

    def top_vector(self, re: np.ndarray, im: np.ndarray) -> np.ndarray:
        """The top eigenvector of one matrix, as well as Lanczos finds it."""
        x, count = self._filled_up(first_vector(self.side)), min(RESTART, self.side)
        for _ in range(RESTARTS):
            (d,), (e,), basis = self._lanczos(re[None], im[None], x, count)
            values, vectors = np.linalg.eigh(np.diag(d) + np.diag(e[:-1], -1))
            found = vectors[:, -1] @ basis[:-1]
            size = float(np.linalg.norm(found))
            if not size:  # any vector is one
                break
            x = found / size
            if e[-1] * abs(vectors[-1, -1]) <= CONVERGED * values[-1]:
                break
        parts = x.reshape(2, -1)[:, : self.side]
        return parts[0] + 1j * parts[1]

    def _lanczos(
        self, re: np.ndarray, im: np.ndarray, start: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from .cholesky_panels import lanczos_panels

        basis = np.empty((count + 1, 2 * self.rows), re.dtype)
        basis[0] = start
        diagonal, beside = np.empty((2, len(re), count), re.dtype)
        lanczos_panels(re, im, self.layout, basis, diagonal, beside)
        return diagonal, beside, basis

    def _filled_up(self, x: Any) -> np.ndarray:
        """Real and imaginary parts of a vector, as the kernels have them."""
        found = np.zeros((2, self.rows))
        found[:, : self.side] = x.real, x.imag
        return found.ravel()


class Triangles:
    """Matrices as `cholesky_batched` has them: (numbers, count)."""

    axis = 1

    def __init__(self, side: int) -> None:
        self.side, self.numbers = side, side * (side + 1) // 2
        self.additions = 2 * side
        self.most = float(side)  # |L| |L|^H is at most its trace, that of level - G
        panels = Panels(side).layout
        columns = [
            place + np.arange(width) * stride - first
            for first, width, place, stride in panels
        ]
        row, column = np.tril_indices(side)
        self.in_panels = np.concatenate(columns)[column] + row

    def of_panels(self, x: np.ndarray) -> np.ndarray:
        return x[:, self.in_panels]

    def apart(self, x: np.ndarray, groups: int) -> np.ndarray:
        together = x.reshape(groups, self.numbers, -1)
        return together.transpose(1, 2, 0).reshape(self.numbers, -1)

    def bounded(self, re: np.ndarray, im: np.ndarray, levels: np.ndarray) -> np.ndarray:
        from .cholesky_batched import definite_triangles

        found = np.empty(re.shape[1], re.dtype)
        definite_triangles(re, im, self.side, levels.astype(re.dtype), found)
        return found > 0

    def tops(self, re: np.ndarray, im: np.ndarray) -> np.ndarray:
        from .cholesky_batched import top_triangles

        x, found = first_vector(self.side), np.empty(re.shape[1], re.dtype)
        start = np.array([x.real, x.imag], re.dtype)
        top_triangles(re, im, start, steps(self.side), found)
        return found


def steps(side: int) -> int:
    """How many of Lanczos there are."""
    return LARGE_STEPS if side > LARGE else min(STEPS, 4 + side // 4, side)


def tops_of_tridiagonal(diagonal: np.ndarray, beside: np.ndarray) -> np.ndarray:
    """The top eigenvalues of the tridiagonal matrices of Lanczos, from below."""
    from .cholesky_panels import top_eigenvalues

    found = np.empty(len(diagonal), diagonal.dtype)
    top_eigenvalues(diagonal, beside, found)
    return found


@cached(maxsize=None)
def first_vector(side: int) -> Any:
    """Where Lanczos begins."""
    x = np.random.default_rng(0).standard_normal((side, 2)) @ np.array([1, 1j])
    return x / np.linalg.norm(x)
