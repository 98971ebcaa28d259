"""The largest singular triplets of some large matrices, about, by block Lanczos."""

from dataclasses import dataclass

import numpy as np

from .._arrays.array import adjoint

# From random vectors: vectors per step, and steps. The basis has as many vectors as
# both together. More steps tell values apart that are close, more vectors find those
# that are equal. From vectors of a matrix that is near, fewer steps are enough.
VECTORS, STEPS, STEPS_FROM_NEAR = 8, 12, 2
# Triplets that are kept of a matrix: the side over SIDES_KEPT, at least LEAST_KEPT.
SIDES_KEPT, LEAST_KEPT = 16, 16


@dataclass(frozen=True, slots=True, eq=False)
class Triplets:
    """u^H H v = s, with orthonormal u and v: the largest s of a subspace first.

    Attributes
    ----------
    u, v : array, shape (matrices, rows or columns, kept)
    s : array, shape (matrices, kept)
    """

    u: np.ndarray
    s: np.ndarray
    v: np.ndarray

    @property
    def short(self) -> np.ndarray:
        """The vectors of the short side, from which those of another H are found."""
        return self.u if self.u.shape[1] < self.v.shape[1] else self.v


def top_triplets(h: np.ndarray, near: np.ndarray | None = None) -> Triplets:
    """Those of matrices (count, rows, columns), by the singular values of H Q.

    Q is a basis of the vectors (H^H H)^k x for small k, or (H H^H)^k x if H has fewer
    rows. `near` has orthonormal vectors x of matrices that are not far from H; without
    them x is random.
    """
    is_wide = h.shape[1] < h.shape[2]
    to, back = (_adjoint_times, _times) if is_wide else (_times, _adjoint_times)
    side = min(h.shape[1:])
    steps, start = STEPS_FROM_NEAR, near
    if start is None:
        random = np.random.default_rng(0).standard_normal((side, min(VECTORS, side)))
        steps, start = STEPS, np.linalg.qr(random)[0]
        start = np.broadcast_to(start, (len(h), *start.shape))
    basis = start.astype(h.dtype)
    images = to(h, basis)
    block = basis.shape[2]
    for _ in range(min(steps, side // block) - 1):
        new = back(h, images[..., -block:])
        for _ in range(2):
            new = new - basis @ (adjoint(basis) @ new)
        new = np.linalg.qr(new)[0]
        basis = np.concatenate([basis, new], axis=-1)
        images = np.concatenate([images, to(h, new)], axis=-1)
    kept = min(max(LEAST_KEPT, side // SIDES_KEPT), basis.shape[2])
    squares, turn = np.linalg.eigh(adjoint(images) @ images)
    squares, turn = squares[:, : -kept - 1 : -1], turn[..., : -kept - 1 : -1]
    least = np.finfo(squares.dtype).smallest_normal
    s = np.sqrt(np.maximum(squares, least))
    short, long = basis @ turn, images @ turn / s[:, None, :]
    return Triplets(short, s, long) if is_wide else Triplets(long, s, short)


def _times(h: np.ndarray, x: np.ndarray) -> np.ndarray:
    return h @ x


def _adjoint_times(h: np.ndarray, x: np.ndarray) -> np.ndarray:
    # The conjugate transpose of x^H h reads h row by row.
    return adjoint(adjoint(x) @ h)


def concatenated(parts: list[Triplets]) -> Triplets:
    """All matrices of several batches."""
    return Triplets(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("u", "s", "v"))
    )
