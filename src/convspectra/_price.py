"""How large is the work on a layer, and what does each way to its norm cost?

Counted in operations, and turned into seconds by the speed of this machine's matrix
products: `_route` keeps to a budget by these, and `plan` shows them.
"""

import math
import time
from dataclasses import dataclass

import numpy as np

from ._arrays.threads import cores, one_blas_thread
from ._base import cached
from ._layer.stencil import Stencil, embedding
from ._maps.banded import BandedGram
from ._maps.matrix import matrix_shape
from ._maps.symbol import (
    WORKING_SET,
    common_steps,
    count_up_to_conjugates,
    factors_needed,
    first_axis_taps,
    pattern_of,
)
from ._maps.tiling import tiling, working_set

# Grids with no more frequencies are not searched: all their matrices are certified.
EXHAUSTIVE_LIMIT = 4096
# A grid with more points than about BOXES * axes * degree on each axis is searched.
BOXES = 10
# Largest delta of the boxes that it begins with. cos(0.4) is 0.92: boxes whose centers
# are less than 8 % below the threshold have to be split.
FIRST_DELTA = 0.4
# Largest side for which a norm may be found by the Gram matrices of all frequencies.
# Measured on two machines; see `products_are_cheaper`.
PRODUCTS_SIDE = 64
# Screening costs as much as the products and factors of this many matrices of side s:
# (nodes + SCREENING_FIXED / s**3) * SCREENING_COST / s. Measured on two machines.
SCREENING_COST, SCREENING_FIXED = 100, 2**18

# Operations, as many as a matrix product does in the time, on matrices of sides m <= n:
# a fixed number, and so many times m^2 n. Measured for 3x3 taps, 1 to 512 channels.
VALUES_WORK = 1e4, 110  # all singular values, in double precision
SPECTRUM_WORK = 5e4, 14  # all of them, as they are for `singular_values`
DOUBLE_WORK = 6e4, 12  # a product and two factorizations, in double precision
SCREENED_WORK = 6e4, 2  # the same in single precision
GROUP_WORK = 1e4, 12  # those of the groups of a depthwise layer, many at once
NODE_WORK = 0, 16  # a Gram matrix at a node of screening, and the set-up of its sums
# Taps of the measured kernels: to transform more costs extra.
TAPS = 9
# Seconds to start; a search starts in about five rounds, and makes the matrices of
# about twice as many boxes as it begins with.
START_SECONDS, SCREENING_SECONDS, ROUNDS, BOX_FACTOR = 1e-3, 3e-3, 5, 2
# Seconds per phase factor of a search, and for what is done with it: on one core.
FACTOR_SECONDS = 1e-7
# Seconds per entry for all that is done with the only matrix of a 1x1 kernel.
ENTRY_SECONDS = 6e-8
# A compression takes about as long as so many norms of its torus.
COMPRESSION = 2.5
# The part of (degree * pi / sites)^2 / 8, summed over the axes, by which a torus is off
# (as much as Bernstein's inequality allows): random 3x3 kernels have 0.1, trained 0.2.
LIKELY = 0.25
# The tolerance that a price of a lower bound is for.
PRICED_RTOL = 1e-4
# Applications of a layer in Lanczos, where two in single precision count as one, and
# the seconds that each takes at least.
APPLICATIONS, APPLICATION_SECONDS = 20, 1.5e-3
# Lanczos on the matrix of a layer: seconds to start, and for every entry as long as so
# many operations of a product take. Measured for sides of 25 to 576.
MATRIX_SECONDS, ENTRY_WORK = 2.5e-3, 1600
# Products per application up to which Lanczos is given the whole layer, not a part.
APPLICATION_LIMIT = 2**33
# Seconds that a column of tiles takes at least, and the speed of a banded factorization
# on one core over that of a product: tiles are rounded up, and each column is solved.
COLUMN_SECONDS, BAND_SPEED = 1e-4, 0.4
# The most directions of the channels that a block compression keeps, and the largest
# side of its matrices between these on all sites of an axis. It eliminates in turn for
# about so many thresholds, with BLOCK_WORK operations for each number of a side^3.
MOST_DIRECTIONS, BLOCK_SIDE, BLOCK_ROUNDS, BLOCK_WORK = 24, 320, 2, 2
# Seconds that it takes at least for each frequency.
BLOCK_FREQUENCY_SECONDS = 1.6e-3
# Bytes that are always needed: threads, their workspaces, small arrays.
BASE_MEMORY = 2**25


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, and peak memory in bytes in addition to the weight."""

    seconds: float
    memory: int

    def __add__(self, other: "Cost") -> "Cost":
        """Of one job after the other."""
        return Cost(self.seconds + other.seconds, max(self.memory, other.memory))


@dataclass(frozen=True, slots=True)
class Machine:
    """How fast a machine is."""

    product_rate: float  # operations per second of real matrix products, one core
    cores: int

    @property
    def speed(self) -> float:
        """Operations per second of the cores that are used: at most four."""
        return self.product_rate * min(self.cores, 4)


# Decides where no budget is stated, so that a layer takes the same route everywhere.
NOMINAL = Machine(product_rate=3.5e10, cores=2)


@dataclass(frozen=True, slots=True)
class SymbolSize:
    """How large and how many the matrices of a torus are, before any is made.

    For a norm a common step of all shifts, as under dilation, is divided out: the norm
    is that of the dilation-reduced kernel, on a smaller grid.
    """

    groups: int
    side: int  # the shorter side of a matrix
    longer_side: int
    degree: tuple[int, ...]  # of the symbol as a trigonometric polynomial
    points: tuple[int, ...] | None  # frequencies per axis; None: all there are
    real: bool

    @property
    def frequencies(self) -> float:
        """How many have different matrices: of a conjugate pair one counts."""
        if self.points is None:
            return math.inf
        if self.real:
            return count_up_to_conjugates(self.points)
        return math.prod(self.points)

    @property
    def nodes(self) -> int:
        """Frequencies from which the Gram matrices of all others are interpolated."""
        every = math.prod(2 * d + 1 for d in self.degree)
        return (every + 1) // 2 if self.real else every

    @property
    def boxes(self) -> int:
        """Frequencies up to which all of them take less time than a search, about."""
        return math.prod(max(1, BOXES * len(self.degree) * d) for d in self.degree)

    @property
    def first_boxes(self) -> float:
        """How many boxes of frequencies a search begins with; few are split later."""
        deltas = [math.pi / 2 * d for d in self.degree if d]
        if self.real and deltas:  # half of one axis stands for all of it
            deltas[0] /= 2
        count = 1
        while sum(deltas) > FIRST_DELTA:
            count *= 2
            deltas[deltas.index(max(deltas))] /= 2
        return min(count, self.frequencies)

    @property
    def is_searched(self) -> bool:
        if self.points is None:
            return True
        return math.prod(self.points) > max(EXHAUSTIVE_LIMIT, self.boxes)

    @property
    def products_are_cheaper(self) -> bool:
        """Whether the products of all matrices take less time than screening them."""
        per_node = SCREENING_COST / self.side
        screening = (self.nodes + SCREENING_FIXED / self.side**3) * per_node
        return self.side <= PRODUCTS_SIDE and self.frequencies < screening


@cached(maxsize=256)
def symbol_size(torus: Stencil, *, real: bool) -> SymbolSize:
    """The size of the matrices from which the norm of a torus comes."""
    pattern = pattern_of(torus)
    step = common_steps(pattern.shifts)
    degree = (pattern.shifts // step).max(axis=0)
    points = None
    if torus.axes is not None:
        rows = torus.rows // np.gcd(step, torus.rows)
        points = tuple(int(n) if d else 1 for n, d in zip(rows, degree))
    side, longer_side = sorted(
        (torus.out_channels, len(pattern.phases) * torus.in_channels)
    )
    return SymbolSize(
        groups=torus.groups,
        side=side,
        longer_side=longer_side,
        degree=tuple(map(int, degree)),
        points=points,
        real=real,
    )


def of_torus(
    torus: Stencil, machine: Machine, *, real: bool, by_values: bool, is_screened: bool
) -> Cost:
    """Of the norms of the matrices of a torus, of all or of those that a search makes.

    Their numbers are known to be real or not, and their singular values are computed or
    factors of their Gram matrices.
    """
    size = symbol_size(torus, real=real)
    side, other = size.side, size.longer_side
    count = size.frequencies
    if size.is_searched:
        count = min(count, BOX_FACTOR * size.boxes)
    work = SCREENED_WORK if is_screened else DOUBLE_WORK
    # Transforming more taps than the measured kernels have costs extra.
    each = _work(VALUES_WORK if by_values else work, side, other)
    each += 4 * side * other * max(taps_each(torus) - TAPS, 0)
    operations, start = size.groups * count * each, START_SECONDS
    if is_screened:
        operations += size.groups * size.nodes * _work(NODE_WORK, side, other)
        start += SCREENING_SECONDS
    if size.is_searched:
        start *= ROUNDS
        start += FACTOR_SECONDS * size.first_boxes * factors_needed(pattern_of(torus))
    kernel = torus.groups * torus.out_channels * torus.in_channels * torus.taps
    held = min(48 * size.groups * count * side * other, WORKING_SET)
    memory = 80 * kernel + BASE_MEMORY + int(held)
    return Cost(start + operations / machine.speed, memory)


def of_group_bounds(torus: Stencil, machine: Machine, *, real: bool) -> Cost:
    """Of a bound for each group, by all matrices of its torus."""
    size = symbol_size(torus, real=real)
    each = _work(GROUP_WORK, size.side, size.longer_side)
    seconds = size.groups * size.frequencies * each / machine.speed
    kernel = torus.groups * torus.out_channels * torus.in_channels * torus.taps
    start = START_SECONDS + SCREENING_SECONDS
    return Cost(start + seconds, 80 * kernel + BASE_MEMORY)


def taps_each(torus: Stencil) -> float:
    """Taps that are summed up for each entry of a matrix, about.

    Where the first axis is transformed first, frequencies share its sums.
    """
    pattern = pattern_of(torus)
    first = first_axis_taps(pattern)
    return 2 * torus.taps / first if first > 1 else torus.taps / len(pattern.phases)


def of_values(torus: Stencil, machine: Machine) -> Cost:
    """Of all singular values of a torus; where all matrices are the same, of one.

    The memory is that of the values themselves, in single precision, which are kept.
    """
    size = symbol_size(torus, real=True)
    matrices = size.frequencies * size.groups
    work = matrices * _work(SPECTRUM_WORK, size.side, size.longer_side)
    values = math.prod(torus.rows) * size.groups * size.side
    return Cost(START_SECONDS + work / machine.speed, 4 * values)


def _work(counted: tuple[float, float], side: int, other: int) -> float:
    fixed, times = counted
    return fixed + times * side * side * other


def of_one_matrix(torus: Stencil, machine: Machine) -> Cost:
    """Of the norm of a 1x1 kernel: one product, and several passes over its entries."""
    return of_kernel_matrix(torus.out_channels, torus.in_channels * torus.taps, machine)


def of_kernel_matrix(rows: int, columns: int, machine: Machine) -> Cost:
    """Of the norm of a kernel as one matrix."""
    side, other = sorted((rows, columns))
    seconds = (
        APPLICATION_SECONDS
        + 2 * side * side * other / machine.product_rate
        + ENTRY_SECONDS * side * other
    )
    return Cost(seconds, 8 * (6 * side * other + 4 * side * side) + BASE_MEMORY)


def of_matrix(stencil: Stencil, machine: Machine, *, products: int) -> Cost:
    """Of the layer's own matrix, with work worth so many Gram matrices."""
    side, other = sorted(matrix_shape(stencil))
    work = 2 * side * side * other * stencil.groups * products
    memory = 8 * stencil.groups * (2 * side * other + 3 * side * side)
    return Cost(work / machine.product_rate, memory + BASE_MEMORY)


def of_matrix_norm(stencil: Stencil, machine: Machine) -> Cost:
    """Of the norm by the layer's own matrix: Lanczos, and a factorization."""
    entries = stencil.groups * math.prod(matrix_shape(stencil))
    seconds = MATRIX_SECONDS + ENTRY_WORK * entries / machine.product_rate
    return of_matrix(stencil, machine, products=1) + Cost(seconds, 0)


def of_band(gram: BandedGram, machine: Machine) -> Cost:
    """Of a factorization within the band of the Gram matrix, by all cores."""
    columns = sum(tiling(piece).count for piece in gram.pieces) * gram.stencil.groups
    numbers = max((working_set(gram, piece) for piece in gram.pieces), default=0)
    seconds = product_seconds(gram, machine) + columns * COLUMN_SECONDS
    return Cost(seconds, 8 * numbers + BASE_MEMORY)


def product_seconds(gram: BandedGram, machine: Machine) -> float:
    """Of the products of that factorization alone, without a look at its tiles."""
    return gram.products / (BAND_SPEED * machine.speed)


def directions_kept(stencil: Stencil) -> int:
    """Directions of the channels that a block compression keeps."""
    return min(MOST_DIRECTIONS, BLOCK_SIDE // _axis_sites(stencil)[0])


def _axis_sites(stencil: Stencil) -> list[int]:
    """Rows and cells of each axis together."""
    sides = zip(stencil.rows, stencil.columns, stencil.stride)
    return [rows + -(-columns // s) for rows, columns, s in sides]


def of_block_compression(stencil: Stencil, machine: Machine) -> Cost:
    """Of Gram matrices at all frequencies, and of what is eliminated from them."""
    size = symbol_size(embedding(stencil)[0], real=True)
    side, count, sites = size.side, size.frequencies, _axis_sites(stencil)
    cut = directions_kept(stencil) * sites[0]
    each = 4 * side * side * size.longer_side + BLOCK_ROUNDS * BLOCK_WORK * side**3
    work = count * each + BLOCK_ROUNDS * 8 * count / sites[0] * cut**3
    memory = 16 * int(count) * side * (side + MOST_DIRECTIONS) + BASE_MEMORY
    seconds = BLOCK_FREQUENCY_SECONDS * count + work / machine.speed
    return Cost(seconds, memory)


def of_lanczos(stencil: Stencil, applications: int, machine: Machine) -> Cost:
    """Of the lower bound: so many applications of the layer and its adjoint."""
    columns = list(stencil.columns)
    if stencil.reads_zeros_outside:
        degree = pattern_of(stencil).shifts.max(axis=0)
        columns = columns_that_attain(stencil, degree, PRICED_RTOL)
    image = stencil.groups * stencil.in_channels * math.prod(columns)
    products = stencil.out_channels * stencil.taps  # per number
    image = min(image, APPLICATION_LIMIT // products)
    each = APPLICATION_SECONDS + 4 * image * products / machine.speed
    return Cost(applications * each, 8 * 40 * image)


def columns_that_attain(stencil: Stencil, degree: np.ndarray, rtol: float) -> list[int]:
    """The first columns of each axis that are likely to attain the norm, to `rtol`.

    So many rows read all taps that the excess of a torus with as many sites is a
    quarter of it.
    """
    excess = LIKELY * float(np.sum((math.pi * degree) ** 2)) / 8
    sites = math.ceil(math.sqrt(4 * excess / rtol)) + 1
    return [
        min(columns, stride * sites + reach - 1)
        for columns, stride, reach in zip(
            stencil.columns, stencil.stride, stencil.reach
        )
    ]


def this_machine() -> Machine:
    """The one that this runs on, measured at the first call."""
    return Machine(product_rate(), cores())


@cached(maxsize=None)
def product_rate() -> float:
    """Operations per second of one core.

    By the processor's time, which other processes do not change.
    """
    is_fine = time.get_clock_info("thread_time").resolution < 1e-5
    clock = time.thread_time if is_fine else time.perf_counter
    a, taken = np.random.default_rng(0).standard_normal((256, 256)), []
    with one_blas_thread():
        for _ in range(5):
            start = clock()
            np.matmul(a, a)
            taken.append(clock() - start)
    return 2 * 256**3 / min(taken)
