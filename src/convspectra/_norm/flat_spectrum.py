"""How small can |H(f) x| be? For nearly orthogonal kernels hardly smaller than |H|.

Such kernels have their norm at every frequency, so that no box of a search is far below
it. But for a unit vector x the polynomial |H(f) x|^2 stays within [m, U^2], where m is
the smallest eigenvalue of all Gram matrices G(f) and U^2 the largest. By Bernstein and
Szego, delta away from a point where it is U^2 it is at least

    U^2 cos^2(delta) + m sin^2(delta),

and where it is m, at most m cos^2(delta) + U^2 sin^2(delta). If m is nearly U^2, wide
boxes will do. Each group has an m of its own.
"""

import math

import numpy as np

from .._arrays.array import asarray_like, namespace, to_numpy
from .._arrays.linalg import are_definite
from .._maps.symbol import Taps, chunks
from .boxes import Boxes
from .gram_certificate import LibraryPass
from .rounding import DOWN, UNIT_DOUBLE, Allowance, group_squares

# The mean eigenvalue over the largest, from which on the smallest is worth knowing. It
# is 1 for orthogonal kernels, and about 1/4 for random ones, whose smallest is near 0.
NEARLY_ORTHOGONAL = 0.5


def flat_groups(taps: Taps, threshold: float) -> np.ndarray:
    """Groups in which most eigenvalues may be near the square of the threshold.

    By Parseval the mean trace over the frequencies is the sum of the squares of taps.
    """
    _, out, _ = taps.channel_shape
    means = group_squares(taps) / min(out, taps.columns)
    return np.flatnonzero(means > NEARLY_ORTHOGONAL * threshold**2)


def smallest_squares(
    taps: Taps,
    groups: np.ndarray,
    boxes: Boxes,
    half_step: float,
    allowance: Allowance,
) -> np.ndarray:
    """A certified lower bound of m for each of these groups; at least 0.

    The boxes hold all frequencies. With l and g the smallest and the largest eigenvalue
    at the centers, and delta that of the widest box, l <= m cos^2 + U^2 sin^2 and
    U^2 cos^2 + m sin^2 <= g. Hence m (cos^2 - sin^2) >= l cos^2 - g sin^2.
    """
    delta = half_step + float(boxes.deltas.max())
    cosine, sine = math.cos(delta) ** 2, math.sin(delta) ** 2
    if delta >= np.pi / 4:
        return np.zeros(len(groups))
    smallest, largest = _eigenvalues_at(taps, groups, boxes, allowance)
    # The sum over the axes, cosine, sine and all that follows cost less than 2^7 u.
    lost = 2**7 * UNIT_DOUBLE * largest
    least = (smallest * cosine - largest * sine - lost) / (cosine - sine)
    return np.maximum(least * DOWN, 0.0)


def _eigenvalues_at(
    taps: Taps, groups: np.ndarray, boxes: Boxes, allowance: Allowance
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the eigenvalues of the groups' Gram matrices at the centers of boxes.

    Computed eigenvalues say where to ask for a factor of G - l and of g - G. A group
    without such factors has the bounds 0 and infinity.
    """
    passes, centers = LibraryPass(taps, boxes.grid_sizes), boxes.centers
    smallest, largest = np.full(len(groups), np.inf), np.zeros(len(groups))
    for part in chunks(taps, len(centers)):
        first = np.arange(part.stop - part.start)[:, None] * taps.channel_shape[0]
        grams = passes.matrices(centers[part], (first + groups).ravel())
        values = to_numpy(namespace(grams).linalg.eigvalsh(grams))
        values = values.reshape(len(first), len(groups), -1)
        high = np.sqrt(np.maximum(values.max(axis=(0, 2)), 0.0))
        high = allowance.threshold(high, rtol=0.0)
        low = values.min(axis=(0, 2)) - 8 * allowance.certified * high**2
        eye = asarray_like(grams, np.eye(grams.shape[-1]))
        below, above = (
            asarray_like(grams, np.tile(bound, len(first)))[:, None, None] * eye
            for bound in (low, high**2)
        )
        have = are_definite(grams - below) & are_definite(above - grams)
        have = have.reshape(len(first), len(groups)).all(axis=0) & (low > 0)
        found = np.where(have, allowance.smallest_square(low, high), 0.0)
        smallest = np.minimum(smallest, found)
        found = np.where(have, allowance.upper(high) ** 2, np.inf)
        largest = np.maximum(largest, found)
    return smallest, largest
