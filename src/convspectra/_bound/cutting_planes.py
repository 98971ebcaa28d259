"""The nearest kernel on a torus, about, in a few rounds: for training.

    minimize |K - K0|^2 / 2   over kernels K with   |H(f)| <= c for every frequency f

If singular values of H(f) = U S V^H exceed c, let B = U max(S - c, 0) V^H, divided by
its nuclear norm. Then Re <B, X> <= c for every matrix X with |X| <= c, but Re <B, H(f)>
is larger. As H(f) is linear in K, this is a half-space of kernels that holds all within
the bound, and not K: a cut. With g = A* B the cut is <g, K> <= c.

Every round cuts at some frequencies where the norm is too large, and moves to the
nearest point K0 - sum of x_j g_j, x_j >= 0, of the intersection of all cuts so far. As
that holds every kernel within the bound, none of them is nearer; scaled down to the
bound, K is one of them. When it is nearly near enough, a step against what is above the
bound at all frequencies saves one or two rounds. A round takes a decomposition at as
many frequencies as it cuts; `nearest` takes one for all of them, and more rounds, but
comes as close as it is asked to. A kernel that training has moved needs few cuts: about
one for each local maximum of the norm above c, however many entries the kernel has.

Nothing is carried from one pass of a training to the next. Cuts of the last pass are no
help after ten steps, as other values have risen above the bound: 64 rounds instead of
69 for a ResNet-18 of width 16, and more cuts in each. Singular vectors are no help
either: new ones that are as good take no longer to find.

Nothing here is certified.
"""

import numpy as np

from .._arrays.array import is_host, to_complex
from .._layer.stencil import Stencil
from .._maps.symbol import frequencies_of
from .blocks import TorusBlocks, torus_blocks
from .cuts import Cuts, NewCuts
from .separation import separate

# Relative gap of the squared distances at which to stop: the kernel is then at most 5 %
# further away than the nearest. The most rounds, and cuts in each.
GAP, ROUNDS, CUTS = 0.1, 10, 32
# From a gap that is not larger than this, one step against all cuts of a round, if they
# are at all frequencies above the bound, is likely to close it. At a pair of conjugate
# frequencies that are far from others, a step of 2 ends at the bound.
POLISHED_GAP, POLISHING = 0.35, 1.5
# Relative excess of the norm that is less than what single precision tells apart.
NEGLIGIBLE = 2e-6


def nearly_nearest(weight: np.ndarray, torus: Stencil, c: float) -> np.ndarray:
    """A kernel with norms of about c at most, nearly the nearest to a real `weight`.

    `weight` itself if no norm seems to be above c.

    Parameters
    ----------
    weight : array
        Real, in double precision and near 1, with one group of channels.
    torus : Stencil
        With a grid.
    """
    blocks = torus_blocks(weight, torus)
    taps, start = blocks.taps, blocks.start.real
    kernel, cuts, vectors = start, None, None
    points = frequencies_of(taps.pattern, torus.rows, real=True)
    for _ in range(ROUNDS):
        found = separate(blocks, kernel, vectors)
        largest, vectors = found.largest, found.vectors
        if largest <= c * (1 + NEGLIGIBLE):
            break
        gap = 1.0 if cuts is None else _gap(start, kernel, c, largest, cuts)
        if gap <= GAP:
            break
        where = _to_cut(found.norms, c, points.representative)
        new = found.cuts(c, where)
        if cuts is None:
            cuts = Cuts.first(new, taps, c)
        else:
            if gap <= POLISHED_GAP and len(where) == np.count_nonzero(found.norms > c):
                step = _step(new, blocks)
                polished = kernel - new.half_spaces.change(step, taps)
                second = separate(blocks, polished, vectors)
                if _gap(start, polished, c, second.largest, cuts) <= GAP:
                    kernel = polished
                    break
            cuts = cuts.with_new(new, taps, c)
        kernel = start - cuts.change(taps)
    if cuts is None:
        return weight
    return blocks.kernel(to_complex(kernel), weight)


def can_cut(weight: np.ndarray, torus: Stencil) -> bool:
    """Whether `nearly_nearest` is for such kernels."""
    return is_host(weight) and weight.dtype.kind == "f" and torus.groups == 1


def _gap(
    start: np.ndarray, kernel: np.ndarray, c: float, largest: float, cuts: Cuts
) -> float:
    """The relative gap of squared distances if `kernel` is scaled to the bound."""
    moved = kernel * min(c / largest, 1.0) - start
    attained = float(np.vdot(moved, moved)) / 2
    return 1 - cuts.distance / attained


def _step(new: NewCuts, blocks: TorusBlocks) -> np.ndarray:
    """How far to go against each cut."""
    taps = max(part.stop - part.start for part in blocks.taps.phases)
    weights = blocks.weights[new.where] / blocks.weights.max()
    return POLISHING * new.nuclear / taps * weights


def _to_cut(norms: np.ndarray, c: float, grid: np.ndarray) -> np.ndarray:
    """The frequencies of the largest local maxima, and then of the largest norms.

    `grid` has the number of the frequency that stands for each point of the torus.
    """
    around = values = norms[grid]
    for axis in range(grid.ndim):
        sides = [np.roll(around, shift, axis) for shift in (-1, 1)]
        around = np.maximum.reduce([around, *sides])
    is_top = np.zeros(len(norms), dtype=bool)
    is_top[grid[values >= around]] = True
    order = np.lexsort((-norms, ~is_top))
    return np.sort(order[norms[order] > c][:CUTS])
