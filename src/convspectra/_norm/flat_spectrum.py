"""How small can |H(f) x| be? For nearly orthogonal kernels hardly smaller than |H|.

Such kernels have their norm at every frequency, so that no box of a search is far below
it. But for a unit vector x the polynomial |H(f) x|^2 stays within [m, U^2], where m is
the smallest eigenvalue of all Gram matrices G(f) and U^2 the largest. By Bernstein and
Szego, delta away from a point where it is U^2 it is at least

    U^2 cos^2(delta) + m sin^2(delta),

and where it is m, at most m cos^2(delta) + U^2 sin^2(delta). If m is nearly U^2, wide
boxes will do.
"""

import math

import numpy as np

from .._arrays.array import asarray_like, frobenius_norm, namespace, to_numpy
from .._arrays.linalg import are_definite
from .._maps.symbol import Taps, chunks
from .boxes import Boxes
from .gram_certificate import LibraryPass
from .rounding import DOWN, UNIT_DOUBLE, Allowance

# The mean eigenvalue over the largest, from which on the smallest is worth knowing. It
# is 1 for orthogonal kernels, and about 1/4 for random ones, whose smallest is near 0.
NEARLY_ORTHOGONAL = 0.5


def may_be_flat(taps: Taps, threshold: float) -> bool:
    """Whether most eigenvalues of the Gram matrices may be near the threshold's square.

    By Parseval the mean trace over the frequencies is the sum of the squares of taps.
    """
    groups, out, _ = taps.channel_shape
    mean = frobenius_norm(taps.weight) ** 2 / (groups * min(out, taps.columns))
    return mean > NEARLY_ORTHOGONAL * threshold**2


def smallest_square(
    taps: Taps, boxes: Boxes, half_step: float, allowance: Allowance
) -> float:
    """A certified lower bound of m, from boxes that hold all frequencies; at least 0.

    With l and g the smallest and the largest eigenvalue at the centers, and delta that
    of the widest box, l <= m cos^2 + U^2 sin^2 and U^2 cos^2 + m sin^2 <= g. Hence
    m (cos^2 - sin^2) >= l cos^2 - g sin^2.
    """
    delta = half_step + float(boxes.deltas.max())
    cosine, sine = math.cos(delta) ** 2, math.sin(delta) ** 2
    if delta >= np.pi / 4:
        return 0.0
    smallest, largest = _eigenvalues_at(taps, boxes, allowance)
    # The sum over the axes, cosine, sine and all that follows cost less than 2^7 u.
    lost = 2**7 * UNIT_DOUBLE * largest
    least = (smallest * cosine - largest * sine - lost) / (cosine - sine)
    return max(least * DOWN, 0.0)


def _eigenvalues_at(
    taps: Taps, boxes: Boxes, allowance: Allowance
) -> tuple[float, float]:
    """Bounds of all eigenvalues of the Gram matrices at the centers of boxes.

    Computed eigenvalues say where to ask for a factor of G - l and of g - G.
    """
    passes, centers = LibraryPass(taps, boxes.grid_sizes), boxes.centers
    smallest, largest = math.inf, 0.0
    for part in chunks(taps, len(centers)):
        every = np.arange((part.stop - part.start) * taps.channel_shape[0])
        grams = passes.matrices(centers[part], every)
        eye = asarray_like(grams, np.eye(grams.shape[-1]))
        values = to_numpy(namespace(grams).linalg.eigvalsh(grams))
        high = allowance.threshold(math.sqrt(max(values.max(), 0.0)), rtol=0.0)
        low = float(values.min()) - 8 * allowance.certified * high**2
        if low <= 0 or not (
            are_definite(grams - low * eye).all()
            and are_definite(high**2 * eye - grams).all()
        ):
            return 0.0, math.inf
        largest = max(largest, allowance.upper(high) ** 2)
        smallest = min(smallest, allowance.smallest_square(low, high))
    return smallest, largest
