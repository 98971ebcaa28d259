"""Every singular value, against the dense matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optional import library
from oracles import CASES, TORUS, descending, make, tolerance, values_by_matrix

import convspectra._maps.symbol
from convspectra import Geometry, dense_matrix, singular_values, summarize
from convspectra._compiled import svdvals
from convspectra._layer.stencil import stencil_of
from convspectra._route.values import values_route
from convspectra._spectrum import values_of


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_matrix(case, dtype, rng):
    weight, geometry = make(case, rng, dtype)
    want = values_by_matrix(weight, geometry)
    got = singular_values(weight, geometry)
    assert got.dtype == np.real(weight).dtype
    assert got.size == want.size
    np.testing.assert_allclose(descending(got), want, atol=tolerance(want, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("case", TORUS)
def test_lapack_gives_the_same_values_where_little_is_asked_for(case, dtype, rng):
    weight, geometry = make(case, rng, dtype)
    stencil = stencil_of(weight, geometry)
    assert values_route(stencil, on_host=True, total_seconds=0.0) != "compiled"
    for scale in (1.0, 2.0**-100, 2.0**100):
        want = scale * values_by_matrix(weight, geometry)
        got = values_of(scale * weight, stencil, total_seconds=0.0)
        assert got.dtype == np.real(weight).dtype
        assert got.size == want.size
        np.testing.assert_allclose(descending(got), want, atol=tolerance(want, dtype))


@pytest.mark.parametrize("case", CASES)
def test_every_library_gives_the_same_values(case, xp, rng):
    weight, geometry = make(case, rng)
    want = singular_values(weight, geometry)
    array = xp.asarray(weight)
    got = singular_values(array, geometry)
    assert type(got) is type(array)
    np.testing.assert_allclose(np.asarray(got), want, atol=tolerance(want, "float64"))


@pytest.mark.parametrize("case", TORUS)
def test_values_have_a_place_for_every_frequency_and_group(case, rng):
    weight, geometry = make(case, rng)
    full = geometry.broadcast_to(weight.ndim - 2)
    frequencies = full.grid if full.transposed else full.out_grid(weight.shape[2:])
    rank = min(
        weight.shape[0] // full.groups, weight.shape[1] * int(np.prod(full.stride))
    )
    values = singular_values(weight, geometry)
    assert values.shape == (*frequencies, full.groups, rank)
    assert np.all(np.diff(values, axis=-1) <= 0)


def test_frequencies_stand_where_the_fourier_transform_puts_them(rng):
    weight = rng.standard_normal((3, 2, 3, 3)) + 1j * rng.standard_normal((3, 2, 3, 3))
    transform = np.fft.fft2(weight, (5, 6)).transpose(2, 3, 0, 1)
    want = np.linalg.svd(transform, compute_uv=False)
    got = singular_values(weight, Geometry((5, 6)))
    np.testing.assert_allclose(got[:, :, 0], want, atol=tolerance(want, "float64"))


def test_aliased_frequencies_stand_at_the_output_frequency(rng):
    weight = rng.standard_normal((4, 2, 3)) + 1j * rng.standard_normal((4, 2, 3))
    transform = np.fft.fft(weight, 6).transpose(2, 0, 1)  # (6, out, in)
    blocks = np.concatenate([transform[:3], transform[3:]], axis=-1) / np.sqrt(2)
    want = np.linalg.svd(blocks, compute_uv=False)
    got = singular_values(weight, Geometry(6, stride=2))
    np.testing.assert_allclose(got[:, 0], want, atol=tolerance(want, "float64"))


def test_values_are_the_same_under_jit(jax, rng):
    for case in ("plain", "strided", "depthwise", "zeros"):
        weight, geometry = make(case, rng)
        got = jax.jit(singular_values, static_argnums=1)(weight, geometry)
        want = singular_values(weight, geometry)
        np.testing.assert_allclose(got, want, atol=tolerance(want, "float64"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_single(dtype, torch, rng):
    weight = torch.asarray(rng.standard_normal((3, 2, 3, 3))).to(getattr(torch, dtype))
    geometry = Geometry(5)
    want = values_by_matrix(weight.double().numpy(), geometry)
    got = singular_values(weight, geometry)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(descending(got), want, atol=tolerance(want, "float32"))


def test_chunks_of_frequencies_change_nothing(monkeypatch, rng):
    weight, geometry = make("plain", rng)
    want = singular_values(weight, geometry)
    monkeypatch.setattr(convspectra._maps.symbol, "WORKING_SET", 1)
    taps = convspectra._maps.symbol.taps_of(weight, _stencil(weight, geometry))
    assert len(convspectra._maps.symbol.chunks(taps, 7)) == 7
    got = singular_values(weight, geometry)
    np.testing.assert_allclose(got, want, atol=tolerance(want, "float64"))


@pytest.mark.parametrize(
    ("case", "dtype", "matrices"),
    [
        ("one-by-one", "float64", 0),  # one tap: left to LAPACK
        ("grid-of-one", "float64", 1),
        ("plain", "float64", 16),  # 30 frequencies: 2 are real, 14 pairs
        ("plain", "complex128", 30),
        ("rectangular-kernel", "float64", 4),  # 7 columns; constant along the rows
    ],
)
def test_no_matrix_is_decomposed_twice(case, dtype, matrices, monkeypatch, rng):
    seen = []

    def counted(name, axis):
        kernel = getattr(svdvals, name)

        def count(re, *rest):
            seen.append(re.shape[axis])
            return kernel(re, *rest)

        monkeypatch.setattr(svdvals, name, count)

    counted("values_of_many", 2)
    counted("values_of_large", 0)
    singular_values(*make(case, rng, dtype))
    assert sum(seen) == matrices


@pytest.mark.parametrize("case", ["depthwise", "plain", "grid-of-one"])
def test_values_of_the_smallest_kernels_are_small(case, rng):
    weight, geometry = make(case, rng)
    values = singular_values(5e-324 * np.sign(weight), geometry)
    assert np.all((values >= 0) & (values < 1e-320))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
@pytest.mark.parametrize("case", ["depthwise", "plain", "zeros"])
def test_values_of_tiny_and_huge_kernels(case, scale, rng):
    weight, geometry = make(case, rng)
    want = singular_values(weight, geometry)
    got = singular_values(scale * weight, geometry) / scale
    np.testing.assert_allclose(got, want, atol=tolerance(want, "float64"))


def test_values_that_single_precision_cannot_hold_are_infinite_and_no_others():
    weight = np.full((2, 2, 3, 3), 3e38, dtype="float32")
    with np.errstate(over="ignore"):
        values = singular_values(weight, Geometry(8))
    want = singular_values(weight.astype("float64"), Geometry(8))
    assert np.any(values == np.inf)
    fits = np.isfinite(values)
    np.testing.assert_allclose(values[fits], want[fits], atol=1e-6 * want.max())
    assert np.all(want[~fits] > np.finfo("float32").max)


def test_past_the_size_of_a_matrix_the_error_names_what_to_call():
    weight = np.ones((64, 64, 3, 3), dtype="float32")
    with pytest.raises(ValueError, match=r"`operator_norm\(weight, geometry\)`.*torus"):
        singular_values(weight, Geometry(32, boundary="zeros"))


shapes = st.tuples(*[st.integers(1, 4)] * 4)
grids = st.tuples(st.integers(1, 6), st.integers(1, 6))
seeds = st.integers(0, 2**32 - 1)


def draw(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape)


@given(shape=shapes, grid=grids, seed=seeds)
def test_squared_values_add_up_to_the_frobenius_norm(shape, grid, seed):
    weight, geometry = draw(seed, shape), Geometry(grid)
    total = np.sum(dense_matrix(weight, geometry) ** 2)
    assert np.sum(singular_values(weight, geometry) ** 2) == pytest.approx(total)


@given(shape=shapes, grid=grids, seed=seeds, factor=st.floats(-100, 100))
def test_scaling_the_kernel_scales_the_values(shape, grid, seed, factor):
    weight, geometry = draw(seed, shape), Geometry(grid)
    want = abs(factor) * singular_values(weight, geometry)
    got = singular_values(factor * weight, geometry)
    np.testing.assert_allclose(got, want, atol=tolerance(want, "float64"))


@given(shape=shapes, grid=grids, seed=seeds)
def test_turning_the_kernel_round_keeps_the_values(shape, grid, seed):
    weight, geometry = draw(seed, shape), Geometry(grid)
    turned = np.ascontiguousarray(weight[:, :, ::-1, ::-1].swapaxes(0, 1))
    want = descending(singular_values(weight, geometry))
    got = descending(singular_values(turned, geometry))
    np.testing.assert_allclose(got, want, atol=tolerance(want, "float64"))


@given(
    shape=shapes,
    grid=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 4),
    seed=seeds,
)
@settings(deadline=None)
def test_all_options_together_agree_with_the_matrix(
    shape, grid, stride, dilation, seed
):
    weight = draw(seed, shape)
    geometry = Geometry(grid * stride, stride=stride, dilation=dilation)
    want = values_by_matrix(weight, geometry)
    got = descending(singular_values(weight, geometry))
    np.testing.assert_allclose(got, want, atol=tolerance(want, "float64"))


def test_the_summary_reads_off_known_values(xp):
    found = summarize(xp.asarray(np.array([[4.0, 2.0], [2.0, 1e-30]])))
    assert found.count == 4
    assert float(found.largest) == 4.0
    assert float(found.smallest) == 1e-30
    assert int(found.rank) == 3
    assert float(found.stable_rank) == pytest.approx(24 / 16)
    entropy = 0.5 * np.log(2) + 2 * 0.25 * np.log(4)
    assert float(found.effective_rank) == pytest.approx(np.exp(entropy))
    assert float(found.condition) == pytest.approx(4e30)
    assert float(found.log_volume) == pytest.approx(np.log(16) - 30 * np.log(10))
    assert int(summarize(xp.asarray(np.array([4.0, 2.0, 1.0])), rtol=0.3).rank) == 2


def test_the_summary_of_the_zero_kernel_is_finite_where_it_can_be():
    found = summarize(singular_values(np.zeros((2, 2, 3)), Geometry(4)))
    assert (found.largest, found.rank, found.stable_rank) == (0, 0, 0)
    assert (found.effective_rank, found.condition) == (0, np.inf)
    assert found.log_volume == -np.inf


def test_the_rank_does_not_depend_on_the_size_of_the_grid():
    # Values between 0.3 and 1 are all there, however many there are.
    values = np.linspace(0.3, 1, 4 * 10**6, dtype="float32").reshape(-1, 4)
    assert summarize(values).rank == values.size


def test_nan_goes_through_a_summary():
    found = summarize(np.array([1.0, np.nan]))
    assert np.isnan([found.largest, found.condition, found.log_volume]).all()


def test_one_value_has_a_summary():
    found = summarize(np.array(2.0))
    assert (found.count, found.largest, found.rank) == (1, 2, 1)


def test_a_summary_needs_values():
    with pytest.raises(ValueError, match="`values` must not be empty"):
        summarize(np.zeros((0, 3)))


@pytest.mark.parametrize("dtype", ["int64", "complex128"])
def test_a_summary_is_of_real_numbers(dtype, xp):
    values = xp.asarray(np.ones((2, 3), dtype=dtype))
    with pytest.raises(TypeError, match=f"must be real floating point, got {dtype}"):
        summarize(values)


def test_values_in_half_precision_have_a_summary():
    bfloat16 = library("ml_dtypes").bfloat16
    assert summarize(np.ones((2, 3), dtype=bfloat16)).rank == 6


def test_the_log_volume_is_the_log_determinant(rng):
    weight, geometry = rng.standard_normal((3, 3, 3, 3)), Geometry(4)
    want = np.linalg.slogdet(dense_matrix(weight, geometry))[1]
    assert summarize(singular_values(weight, geometry)).log_volume == pytest.approx(
        want
    )


def _stencil(weight, geometry):
    return convspectra._layer.stencil.stencil_of(weight, geometry)


@pytest.mark.parametrize("shape", [(96, 40), (40, 96), (64, 64)])
@pytest.mark.parametrize("rank", [8, 40])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_one_tap_in_single_precision_is_as_close_as_single_precision(
    shape, rank, scale, rng
):
    left, right = (rng.standard_normal((n, rank)) for n in shape)
    weight = (scale * left @ right.T).astype(np.float32)[:, :, None]
    got = singular_values(weight, Geometry(1)).ravel()
    want = np.linalg.svd(weight[:, :, 0].astype(np.float64), compute_uv=False)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-7 * want[0], rtol=0)
