"""The ends of the norm: on the right sides always, and together where promised."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import CASES, OTHERS, TORUS, make, norm_by_matrix
from routes import SEARCHES, norm_along, search

import convspectra._norm.operator_norm
import convspectra._norm.search
from convspectra import Geometry, operator_norm, singular_values, top_vectors
from convspectra._layer.boundary import BOUNDARIES

GOLDEN = (1 + np.sqrt(5)) / 2  # the kernel (1, -1, 1) on 3 points embeds with GOLDEN^2


def assert_between(found, norm):
    """`lower <= norm <= upper`, but for the rounding of the norm itself."""
    room = 1e-13 * norm + 1e-300
    assert found.lower <= norm + room
    assert norm <= found.upper + room


@pytest.fixture
def looked_at(monkeypatch):
    """How many boxes each step of a search looks at, as they come."""
    counts, reject = [], convspectra._norm.search.Search._is_left

    def counting(self, boxes):
        counts.append(len(boxes))
        return reject(self, boxes)

    monkeypatch.setattr(convspectra._norm.search.Search, "_is_left", counting)
    return counts


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_the_norm_of_the_matrix_is_between_the_bounds(case, dtype, rng):
    weight, geometry = make(case, rng, dtype)
    norm = norm_by_matrix(weight, geometry)
    found = operator_norm(weight, geometry)
    assert_between(found, norm)
    assert found.gap <= 1e-4
    assert found.method == ("frequencies" if case in TORUS else "matrix")
    assert found.grid == geometry.broadcast_to(weight.ndim - 2).grid


@pytest.mark.parametrize("rtol", [0.3, 1e-2, 1e-6, 1e-9])
def test_the_bounds_are_as_close_as_asked(rtol, rng):
    for case in ("plain", "strided", "zeros"):
        weight, geometry = make(case, rng, "float32")
        found = operator_norm(weight, geometry, rtol=rtol)
        assert_between(found, norm_by_matrix(weight, geometry))
        assert found.gap <= rtol


@pytest.mark.parametrize("case", CASES)
def test_every_library_certifies(case, xp, rng):
    weight, geometry = make(case, rng)
    array = xp.asarray(weight)
    found = operator_norm(array, geometry)
    norm = norm_by_matrix(weight, geometry)
    assert float(found.lower) <= norm * (1 + 1e-13)
    assert float(found.upper) >= norm * (1 - 1e-13)
    assert found.gap <= 1e-4


@pytest.mark.parametrize("case", OTHERS)
def test_without_the_matrix_the_bounds_still_hold(case, rng):
    weight, geometry = make(case, rng)
    found = norm_along(weight, geometry, method="embedding")
    assert found.method == "embedding"
    norm = norm_by_matrix(weight, geometry)
    assert_between(found, norm)
    assert found.lower >= norm * (1 - 1e-4)  # Lanczos has found the top


@pytest.mark.parametrize("algorithm", SEARCHES)
@pytest.mark.parametrize("case", TORUS)
def test_boxes_of_frequencies_certify_as_single_ones_do(case, algorithm, rng):
    weight, geometry = make(case, rng)
    found = search(weight, geometry, rtol=1e-5, algorithm=algorithm)
    assert_between(found, norm_by_matrix(weight, geometry))
    assert found.gap <= 1e-5


@pytest.mark.parametrize("algorithm", SEARCHES)
@pytest.mark.parametrize(
    "grid", [(9, 9), (64, 64), (64, 3), (2, 200), (40, 12), (7, 64)]
)
def test_the_norm_on_a_grid_is_not_that_between_its_points(grid, algorithm, rng):
    for kernel in [(3, 3), (3, 1), (4, 5)]:
        weight, geometry = rng.standard_normal((3, 2, *kernel)), Geometry(grid)
        found = search(weight, geometry, rtol=1e-6, algorithm=algorithm)
        assert_between(found, singular_values(weight, geometry).max())
        assert found.gap <= 1e-6


@pytest.mark.parametrize("n", [16, 21, 32, 50, 64])
def test_the_largest_norm_may_stand_beside_a_peak_between_two_points(n):
    for peak in range(n):
        # |1 + exp(i (f - f0))| = 2 cos((f - f0) / 2), half a step off the grid; and a
        # second channel that sets the threshold, nearly as large and on the grid.
        cycles = np.array([peak + 0.5, peak + n // 2]) / n
        weight = np.zeros((2, 2, 2), complex)
        weight[[0, 1], [0, 1], 1] = np.exp(2j * np.pi * cycles)
        weight[[0, 1], [0, 1], 0] = 1
        largest = 2 * np.cos(np.pi / (2 * n))
        weight[1] *= 0.99 * largest / 2
        found = search(weight, Geometry(n), rtol=1e-9, algorithm="search by values")
        assert_between(found, largest)


def test_boxes_leave_most_frequencies_unseen(looked_at, rng):
    weight = rng.standard_normal((4, 4, 3, 3))
    geometry = Geometry(128)
    found = operator_norm(weight, geometry)
    assert 0 < sum(looked_at) < 128 * 128 / 2 / 4
    assert_between(found, singular_values(weight, geometry).max())


@pytest.mark.parametrize(
    ("shape", "stride"), [((70, 66, 3, 3), 1), ((70, 20, 3, 3), 2), ((66, 66, 5, 5), 1)]
)
def test_matrices_made_one_by_one_change_nothing(shape, stride, monkeypatch, rng):
    weight, geometry = rng.standard_normal(shape), Geometry((12, 12), stride=stride)
    want = operator_norm(weight, geometry, rtol=1e-9)
    made, products = [], convspectra._compiled.packed.Panels.set_products

    def counted(self, re, im, found):
        made.append(len(re))
        products(self, re, im, found)

    monkeypatch.setattr(convspectra._compiled.packed.Panels, "set_products", counted)
    monkeypatch.setattr(convspectra._maps.split_complex, "MOST_ENTRIES", 1)
    found = operator_norm(weight, geometry, rtol=1e-9)
    assert found.upper == pytest.approx(want.upper, rel=1e-9)
    assert len(made) > 4
    assert set(made) == {1}


@pytest.mark.parametrize("boundary", ["circular", "zeros"])
@pytest.mark.parametrize(
    "case", ["plain", "strided", "dilated", "grouped", "even-kernel"]
)
def test_the_supremum_bounds_every_grid(case, boundary, rng):
    shape, arguments = CASES[case]
    weight = rng.standard_normal(shape)
    rest = {k: v for k, v in arguments.items() if k != "grid"} | {"boundary": boundary}
    found = operator_norm(weight, Geometry(None, **rest), rtol=1e-4)
    assert (found.method, found.grid) == ("supremum", None)
    assert found.gap <= 1e-4
    stride = rest.get("stride", 1)
    norms = [norm_by_matrix(weight, Geometry(n * stride, **rest)) for n in (1, 2, 3, 5)]
    assert max(norms) <= found.upper
    large = operator_norm(
        weight, Geometry(256 * stride, **rest | {"boundary": "circular"})
    )
    assert large.lower <= found.upper
    assert large.upper >= found.lower * (1 - 1e-3)  # a fine grid nearly attains it


@pytest.mark.parametrize(
    "boundary", [b for b in BOUNDARIES if b not in ("circular", "zeros")]
)
def test_the_supremum_bounds_every_grid_with_mirrors_too(boundary, rng):
    weight = rng.standard_normal((2, 2, 3, 3))
    found = operator_norm(weight, Geometry(None, boundary=boundary))
    grids = [1, 2, 3, 4, (1, 6), (2, 7)]
    norms = [norm_by_matrix(weight, Geometry(n, boundary=boundary)) for n in grids]
    assert max(norms) <= found.upper


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 3, 9, 6), (0, 1)), ((3, 2, 90), (0,)), ((2, 2, 30, 1), (0,))],
)
def test_the_supremum_of_many_taps_is_that_of_a_fine_grid(shape, axes, rng):
    """By NumPy's own transform, on a grid whose points are near every frequency."""
    weight = rng.standard_normal(shape)
    found = operator_norm(weight, Geometry(None))
    sizes = [2048 if len(axes) == 1 else 512] * len(axes)
    symbols = np.fft.fftn(weight, sizes, [2 + a for a in axes])
    matrices = np.moveaxis(symbols, (0, 1), (-2, -1)).reshape(-1, *shape[:2])
    largest = np.linalg.svd(matrices, compute_uv=False).max()
    assert found.gap <= 1e-4
    assert found.lower * (1 - 1e-3) <= largest <= found.upper


@pytest.mark.parametrize(("side", "taps", "seed"), [(16, 5, 0), (8, 7, 2), (4, 11, 0)])
def test_a_supremum_of_which_single_precision_leaves_a_doubt(side, taps, seed):
    weight = np.random.default_rng(seed).standard_normal((side, side, taps, taps))
    found = operator_norm(weight, Geometry(None, boundary="zeros"))
    symbols = np.fft.fft2(weight, (64, 64)).transpose(2, 3, 0, 1)
    largest = np.linalg.svd(symbols, compute_uv=False).max()
    assert found.gap <= 1e-4
    assert found.lower * 0.98 <= largest <= found.upper


def test_a_known_supremum():
    found = operator_norm(np.array([[[1.0, -1.0, 1.0]]]), Geometry(None))
    assert found.lower <= 3 <= found.upper


@pytest.mark.parametrize(
    "geometry",
    [
        {"padding": 2},
        {"padding": 1, "stride": 2, "transposed": True},  # 2 n - 1 outputs: no torus
    ],
)
def test_no_grid_can_be_left_open_where_circular_padding_is_no_torus(geometry):
    with pytest.raises(ValueError, match="no bound holds for every grid"):
        operator_norm(np.ones((1, 1, 3)), Geometry(None, **geometry))


def test_a_transposed_torus_can_leave_its_grid_open(rng):
    weight = rng.standard_normal((2, 2, 3))
    rest = {"padding": 1, "stride": 2, "output_padding": 1, "transposed": True}
    every = operator_norm(weight, Geometry(None, **rest))
    norms = [norm_by_matrix(weight, Geometry(n, **rest)) for n in (1, 2, 3, 6)]
    assert max(norms) <= every.upper


def test_the_largest_group_of_the_torus_need_not_be_the_layer_s():
    weight = np.zeros((2, 1, 3))
    weight[0], weight[1, 0, 1] = 1 / 3, 0.9  # a mean, and 0.9 times the identity
    geometry = Geometry(3, groups=2, boundary="zeros")
    assert operator_norm(weight, geometry.torus()).lower > 0.99
    assert top_vectors(weight, geometry).gain == pytest.approx(0.9)
    embedded = norm_along(weight, geometry, method="embedding")
    assert embedded.lower == pytest.approx(0.9)


def test_many_groups_count_together_against_the_size_of_a_matrix():
    weight = np.zeros((512, 1, 3, 3), dtype="float32")
    geometry = Geometry(14, groups=512, boundary="zeros")  # 196 x 196, 512 times
    assert operator_norm(weight, geometry).method == "banded"
    one = Geometry(14, boundary="zeros")
    assert operator_norm(weight[:1], one).method == "matrix"


def test_of_many_groups_the_most_promising_are_tried(rng):
    weight = 0.1 * rng.standard_normal((20, 1, 3))
    weight[13] *= 10
    found = top_vectors(weight, Geometry(8, groups=20, boundary="zeros"))
    assert np.flatnonzero(np.abs(found.input).sum(axis=1)).tolist() == [13]
    norm = norm_by_matrix(weight, Geometry(8, groups=20, boundary="zeros"))
    assert found.gain == pytest.approx(norm)


@pytest.mark.parametrize("dilation", [1, 9])
def test_dilation_costs_the_supremum_nothing(dilation, looked_at):
    weight = np.random.default_rng(0).standard_normal((2, 2, 3, 3))
    found = operator_norm(weight, Geometry(None, dilation=dilation))
    assert 0 < sum(looked_at) < 3000
    fine = singular_values(weight, Geometry(200)).max()
    assert found.lower <= fine * (1 + 1e-3)
    assert found.upper >= fine


def test_the_circular_norm_is_no_bound_for_zero_padding():
    weight = np.array([[[1.0, -1.0, 1.0]]])
    zeros = Geometry(3, boundary="zeros")
    assert operator_norm(weight, Geometry(3)).upper < 2.01
    assert operator_norm(weight, zeros).lower == pytest.approx(1 + np.sqrt(2), rel=1e-4)
    embedded = norm_along(weight, zeros, method="embedding")
    assert embedded.upper == pytest.approx(GOLDEN**2, rel=1e-4)


@pytest.mark.parametrize(
    "scale", [2.0**-1040, 2.0**-600, 2.0**-30, 2.0**600, 2.0**1000]
)
@pytest.mark.parametrize("boundary", ["circular", "zeros"])
@pytest.mark.parametrize("grid", [5, None])
def test_tiny_and_huge_kernels_are_certified_alike(grid, boundary, scale, rng):
    weight = rng.standard_normal((2, 2, 3)).astype("float16").astype("float64")
    geometry = Geometry(grid, boundary=boundary)
    want = operator_norm(weight, geometry)
    found = operator_norm(scale * weight, geometry)
    # Where numbers are so small that they lose digits, the ends go outward.
    assert found.lower / scale == pytest.approx(want.lower, rel=1e-6)
    assert found.upper / scale == pytest.approx(want.upper, rel=1e-6)
    assert found.lower <= want.lower * scale
    assert found.upper >= want.upper * scale


@pytest.mark.parametrize("boundary", ["circular", "zeros"])
def test_many_equal_norms_end_the_search(boundary, rng):
    # A projected kernel attains its bound at many frequencies and in many groups.
    weight = rng.standard_normal((6, 2, 3, 3))
    geometry = Geometry(10, stride=2, groups=2, boundary=boundary)
    bound = float(0.4 * operator_norm(weight, geometry).lower)
    projected = convspectra.project(weight, geometry, bound).weight
    found = operator_norm(projected, geometry)
    assert_between(found, norm_by_matrix(projected, geometry))
    assert found.upper <= bound


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("boundary", ["circular", "zeros"])
def test_the_top_vectors_of_a_zero_kernel_have_a_unit_input(boundary, transposed, xp):
    geometry = Geometry(4, boundary=boundary, transposed=transposed)
    found = top_vectors(xp.asarray(np.zeros((2, 3, 3))), geometry)
    assert np.linalg.norm(np.asarray(found.input)) == pytest.approx(1)
    assert not np.asarray(found.output).any()
    assert float(found.gain) == 0


@pytest.mark.parametrize("grid", [5, None])
@pytest.mark.parametrize("boundary", ["circular", "zeros"])
def test_the_zero_kernel_has_norm_zero(grid, boundary, xp):
    weight = xp.asarray(np.zeros((2, 2, 3, 3)))
    found = operator_norm(weight, Geometry(grid, boundary=boundary))
    assert (float(found.lower), float(found.upper), found.gap) == (0, 0, 0)


def test_taps_that_cancel_on_a_small_grid_leave_only_rounding():
    found = operator_norm(np.array([[[0.1, -0.3, 0.2]]]), Geometry(1))
    assert found.lower == 0
    assert 0 < found.upper < 1e-12


def test_repeated_values_and_flat_spectra_are_certified():
    for weight in (np.eye(4)[:, :, None], np.ones((3, 3, 1, 1)), np.ones((1, 1, 4))):
        found = operator_norm(weight, Geometry(4), rtol=1e-8)
        assert_between(found, norm_by_matrix(weight, Geometry(4)))
        assert found.gap <= 1e-8


def test_no_svd_is_taken_on_the_way_to_the_norm(monkeypatch, rng):
    def refuse(*args, **kwargs):
        raise AssertionError("an SVD was taken")

    for name in ("svd", "svdvals"):
        monkeypatch.setattr(np.linalg, name, refuse)
    for case in ("plain", "strided", "zeros"):
        operator_norm(*make(case, rng))


def test_the_bounds_are_rounded_outward_where_jax_has_single_precision(jax, rng):
    weight = rng.standard_normal((3, 3, 3)).astype("float32")
    want = operator_norm(weight, Geometry(8))
    with jax.enable_x64(False):
        found = operator_norm(jax.numpy.asarray(weight), Geometry(8))
        assert found.upper.dtype == "float32"
        assert float(found.lower) <= want.lower
        assert float(found.upper) >= want.upper
        assert found.gap <= 1e-4


def test_under_jit_the_method_is_that_of_the_route(jax, rng):
    found = []
    for boundary in ("circular", "zeros"):
        geometry = Geometry(5, boundary=boundary)

        def norm(weight, geometry=geometry):
            found.append(operator_norm(weight, geometry).method)
            return weight

        jax.jit(norm)(jax.numpy.asarray(rng.standard_normal((2, 2, 3))))
    assert found == ["frequencies", "matrix"]


def test_nan_goes_through_jit_as_nan(jax):
    weight = np.full((1, 1, 3), np.nan)
    found = jax.jit(lambda w: operator_norm(w, Geometry(4)).upper)(weight)
    assert np.isnan(found)


@pytest.mark.parametrize("rtol", [0, -1.0, 1.0, float("nan"), "1"])
def test_a_tolerance_is_between_0_and_1(rtol):
    for function in (operator_norm, top_vectors):
        with pytest.raises(ValueError, match="`rtol` must be between 0 and 1, got"):
            function(np.ones((1, 1, 3)), Geometry(4), rtol=rtol)


def test_the_smallest_numbers_are_rounded_outward():
    # The norm is sqrt(2) times the smallest number there is, which rounds down.
    found = operator_norm(np.full((2, 1, 1), 5e-324), Geometry(4))
    assert (found.lower, found.upper) == (0, 1e-323)


def test_the_largest_numbers_do_not_break_the_ends():
    for weight in (np.full((1, 1, 3), 1e308), np.full((1, 1, 1), 1.7e308 * (1 + 1j))):
        found = operator_norm(weight, Geometry(4))
        assert 1e308 < found.lower < np.inf == found.upper


@given(
    shape=st.tuples(*[st.integers(1, 4)] * 4),
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    boundary=st.sampled_from(BOUNDARIES),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=50)
def test_any_boundary_agrees_with_the_matrix(shape, grid, boundary, seed):
    weight = np.random.default_rng(seed).standard_normal(shape)
    geometry = Geometry(grid, boundary=boundary)
    found = operator_norm(weight, geometry)
    assert_between(found, norm_by_matrix(weight, geometry))
    assert found.gap <= 1e-4


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_the_witness_attains_the_norm(case, dtype, rng):
    weight, geometry = make(case, rng, dtype)
    found = top_vectors(weight, geometry)
    matrix = convspectra.dense_matrix(weight, geometry)
    norm = norm_by_matrix(weight, geometry)
    assert found.input.dtype == weight.dtype
    assert found.output.shape[1:] == geometry.out_grid(weight.shape[2:])
    assert np.linalg.norm(found.input) == pytest.approx(1, abs=1e-12)
    answer = (matrix @ found.input.reshape(-1)).reshape(found.output.shape)
    np.testing.assert_allclose(found.output, answer, atol=1e-12 * norm)
    assert np.linalg.norm(answer) >= norm * (1 - 2e-6)
    assert found.gain == pytest.approx(np.linalg.norm(answer), rel=1e-12)


def test_the_witness_is_an_image_of_the_weight_s_library(xp, rng):
    weight, geometry = make("zeros-strided", rng, "float32")
    found = top_vectors(xp.asarray(weight), geometry)
    assert type(found.input) is type(xp.asarray(weight))
    assert found.input.shape == (2, 7, 6)


def test_a_framework_s_own_layer_stretches_the_witness(torch, rng):
    layer = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)
    geometry = Geometry((9, 8), 2, padding=1, boundary="zeros")
    found = top_vectors(layer.weight, geometry)
    with torch.no_grad():
        gain = torch.linalg.vector_norm(layer(found.input[None]))
    assert float(gain) == pytest.approx(float(found.gain), rel=1e-5)


@pytest.mark.parametrize("left", [1e-5, 1e-10, 1e-12])
def test_a_norm_of_next_to_nothing_ends_the_search(left, rng):
    # The two taps meet on the one site there is, and nearly cancel.
    weight = rng.standard_normal((65, 65, 2))
    weight[..., 1] = -weight[..., 0] * (1 + left)
    found = operator_norm(weight, Geometry(grid=1))
    assert_between(found, np.linalg.norm(weight.sum(axis=2), 2))


@pytest.mark.parametrize("left", [1e-3, 1e-4, 1e-5])
def test_a_grid_that_misses_where_the_symbol_is_large(left, rng):
    # Single precision, near the size of what is beside the grid, says nothing here.
    weight = rng.standard_normal((65, 65, 4, 2))
    weight[:, :, 2:] = -weight[:, :, :2] * (1 + left)
    geometry = Geometry(grid=(2, 40))
    found = operator_norm(weight, geometry)
    assert_between(found, singular_values(weight, geometry).max())


@pytest.mark.parametrize(
    ("grid", "dilation"),
    [((4, 6), 1001), ((12, 9), 2), ((12, 9), 3), ((12, 10), 8), ((40, 64), 6)],
)
def test_dilations_are_those_of_a_slower_wave(grid, dilation, rng):
    weight = rng.standard_normal((5, 4, 3, 2))
    geometry = Geometry(grid=grid, dilation=dilation)
    found = norm_along(weight, geometry, algorithm="every frequency", is_screened=True)
    values = singular_values(weight, geometry)
    assert_between(found, values.max())
    if dilation < 10:  # the image that attains it is at the right frequency
        top = convspectra.top_vectors(weight, geometry)
        assert float(top.gain) == pytest.approx(values.max(), rel=1e-6)
