"""The largest singular triplets of some large matrices, about, by block Lanczos."""

from dataclasses import dataclass

import numpy as np

from .._arrays.array import adjoint

# Vectors per step, and steps: a basis of as many vectors as both together have. More
# steps tell values apart that are close, more vectors find those that are equal.
VECTORS, STEPS = 4, 12
KEPT = 16  # triplets per matrix


@dataclass(frozen=True, slots=True, eq=False)
class Triplets:
    """u^H H v = s, with orthonormal u and v: the largest s of a subspace first.

    Attributes
    ----------
    u, v : array, shape (matrices, rows or columns, KEPT)
    s : array, shape (matrices, KEPT)
    """

    u: np.ndarray
    s: np.ndarray
    v: np.ndarray

    def soft_thresholded(self, c: float, which: np.ndarray) -> np.ndarray:
        """Sums of u max(s - c, 0) v^H, for these matrices: (which, rows, columns)."""
        excess = np.maximum(self.s[which] - c, 0.0)
        return (self.u[which] * excess[:, None, :]) @ adjoint(self.v[which])


def top_triplets(h: np.ndarray) -> Triplets:
    """Those of matrices (count, rows, columns), by the singular values of H Q.

    Q is a basis of the vectors (H^H H)^k x for all k below STEPS.
    """
    columns = h.shape[2]
    random = np.random.default_rng(0).standard_normal((columns, VECTORS))
    v = np.broadcast_to(np.linalg.qr(random)[0], (len(h), *random.shape))
    basis, images = v.astype(h.dtype), h @ v.astype(h.dtype)
    for _ in range(min(STEPS, columns // VECTORS) - 1):
        # The conjugate transpose of y^H h reads h row by row.
        new = adjoint(adjoint(images[..., -VECTORS:]) @ h)
        for _ in range(2):
            new = new - basis @ (adjoint(basis) @ new)
        new = np.linalg.qr(new)[0]
        basis = np.concatenate([basis, new], axis=-1)
        images = np.concatenate([images, h @ new], axis=-1)
    u, s, wh = np.linalg.svd(images, full_matrices=False)
    v = basis @ adjoint(wh[..., :KEPT, :])
    return Triplets(u[..., :KEPT], s[..., :KEPT], v)


def concatenated(parts: list[Triplets]) -> Triplets:
    """All matrices of several batches."""
    return Triplets(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("u", "s", "v"))
    )
