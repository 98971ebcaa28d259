"""Every baseline on the side of the norm that it claims, against the dense matrix."""

import gc
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles import CASES, TORUS, make, norm_by_matrix

import convspectra._maps.symbol
from convspectra import Geometry, dense_matrix, operator_norm, singular_values
from convspectra._layer.boundary import BOUNDARIES
from convspectra.baselines import (
    Baseline,
    fantastic_four,
    gram_iteration,
    power_iteration,
    reshaped_clip,
    reshaped_norm,
    tensor_norm,
)

BOUNDS = (reshaped_norm, power_iteration, fantastic_four, gram_iteration)
METHODS = (*BOUNDS, tensor_norm)
ROUNDING = 1e-12  # relative: some thousand roundings of double precision
TAPS_THAT_MERGE_OR_READ_ZEROS = {
    "kernel-past-grid",
    "one-channel-many-taps",
    "grid-of-one",
    "dilated-common-divisor",
    "dilated-strided",
    "three-dimensional",
    "zeros-kernel-past-grid",
}


def check_side(found, norm):
    if found.kind == "upper bound":
        assert found.value >= norm * (1 - ROUNDING)
    if found.kind == "lower bound":
        assert found.value <= norm * (1 + ROUNDING)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_bounds_are_on_the_side_they_claim(case, dtype, rng):
    weight, geometry = make(case, rng, dtype)
    norm = norm_by_matrix(weight, geometry)
    for method in BOUNDS:
        check_side(method(weight, geometry), norm)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 3)] * 2, st.integers(1, 5)),
    geometry=st.builds(
        Geometry,
        grid=st.integers(1, 8),
        stride=st.integers(1, 3),
        dilation=st.integers(1, 3),
        padding=st.just("same") | st.integers(0, 4),
        boundary=st.sampled_from(BOUNDARIES),
        transposed=st.booleans(),
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_bounds_are_on_the_side_they_claim_for_any_geometry(shape, geometry, seed):
    try:
        geometry.out_grid(shape[2:])
    except ValueError:
        assume(False)  # no output at all
    weight = np.random.default_rng(seed).standard_normal(shape)
    norm = norm_by_matrix(weight, geometry)
    for method in BOUNDS:
        check_side(method(weight, geometry), norm)


def test_methods_and_kinds_are_these(rng):
    weight, geometry = make("plain", rng)
    found = [method(weight, geometry) for method in METHODS]
    assert [baseline.method for baseline in found] == [f.__name__ for f in METHODS]
    assert {baseline.method: baseline.kind for baseline in found} == {
        "reshaped_norm": "lower bound",
        "power_iteration": "lower bound",
        "fantastic_four": "upper bound",
        "gram_iteration": "upper bound",
        "tensor_norm": "estimate",
    }


@pytest.mark.parametrize("case", CASES)
def test_reshaped_norm_is_a_bound_where_a_row_holds_the_whole_kernel(case, rng):
    weight, geometry = make(case, rng)
    matrix = dense_matrix(weight, geometry)
    matrix = matrix.T if geometry.transposed else matrix
    rows = [np.sort(row[row != 0]) for row in matrix]
    first = np.sort(weight[0], axis=None)  # random numbers: no two alike
    is_block = any(np.array_equal(row, first) for row in rows)
    kind = reshaped_norm(weight, geometry).kind
    assert kind == ("lower bound" if is_block else "estimate")
    assert is_block == (case not in TAPS_THAT_MERGE_OR_READ_ZEROS)


@pytest.mark.parametrize(
    ("boundary", "taps"), [("circular", [3.0, -3.0]), ("zeros", [0.0, 3.0])]
)
def test_reshaped_norm_bounds_nothing_where_taps_merge_or_read_zeros(boundary, taps):
    weight, geometry = np.array([[taps]]), Geometry(grid=1, boundary=boundary)
    assert norm_by_matrix(weight, geometry) == 0
    found = reshaped_norm(weight, geometry)
    assert found.value >= 3.0
    assert found.kind == "estimate"


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_reshaped_norm_is_the_largest_over_the_groups(case, dtype, rng):
    weight, geometry = make(case, rng, dtype)
    groups = np.split(weight, geometry.groups)
    want = max(np.linalg.norm(w.reshape(len(w), -1), 2) for w in groups)
    assert reshaped_norm(weight, geometry).value == pytest.approx(want)


@pytest.mark.parametrize(
    ("sides", "back"),
    [
        ((20, 2, 2, 5), (0, 1, 2, 3)),
        ((10, 2, 4, 5), (0, 2, 1, 3)),
        ((4, 5, 10, 2), (0, 2, 3, 1)),
        ((2, 2, 5, 20), (0, 3, 1, 2)),
    ],
)
def test_fantastic_four_is_the_least_of_four_reshapings(sides, back, rng):
    # One of the four is orthogonal, so that its norm is 1; the others are as large but
    # less square, so that theirs are larger.
    square = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    weight = square.reshape(sides).transpose(back)
    assert weight.shape[2:] == (2, 5)
    found = fantastic_four(weight, Geometry(grid=8)).value
    assert found == pytest.approx(math.sqrt(10))


def test_the_rows_that_circular_padding_repeats_are_counted():
    # On one site the layer copies its input to three: norm sqrt(3), with one tap.
    weight, geometry = np.ones((1, 1, 1)), Geometry(grid=1, padding=1)
    assert norm_by_matrix(weight, geometry) == pytest.approx(math.sqrt(3))
    for method in (fantastic_four, gram_iteration, tensor_norm):
        assert method(weight, geometry).value == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("case", TORUS)
def test_gram_iteration_comes_down_to_the_norm(case, rng):
    weight, geometry = make(case, rng)
    norm = norm_by_matrix(weight, geometry)
    found = [gram_iteration(weight, geometry, steps=n).value for n in (1, 2, 4, 30)]
    assert np.all(np.diff(found) <= ROUNDING * norm)
    assert found[-1] == pytest.approx(norm, rel=1e-8)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("case", TORUS)
def test_gram_iteration_is_the_largest_schatten_norm(case, steps, rng):
    weight, geometry = make(case, rng)
    order = 2 ** (steps + 1)
    want = np.linalg.norm(singular_values(weight, geometry), ord=order, axis=-1).max()
    found = gram_iteration(weight, geometry, steps=steps).value
    assert found == pytest.approx(want, rel=ROUNDING)


def test_gram_iteration_looks_at_every_chunk(monkeypatch):
    monkeypatch.setattr(convspectra._maps.symbol, "WORKING_SET", 1)
    weight = np.array([[[1.0, -1.0]]])  # loudest at the last frequency
    assert gram_iteration(weight, Geometry(grid=8)).value == pytest.approx(2.0)


@pytest.mark.parametrize("case", CASES)
def test_power_iteration_comes_up_to_the_norm(case, rng):
    weight, geometry = make(case, rng)
    norm, steps = norm_by_matrix(weight, geometry), 60
    counts = (1, 4, steps)
    found = [power_iteration(weight, geometry, steps=n).value for n in counts]
    assert np.all(np.diff(found) >= -ROUNDING * norm)
    # From a random start in n dimensions, on average (Kuczynski and Wozniakowski).
    sites = dense_matrix(weight, geometry).shape[1]
    assert found[-1] >= norm * (1 - 0.5 * math.log(sites) / (steps - 1))


def test_power_iteration_ends_at_the_norm_where_there_is_a_gap(rng):
    weight, geometry = np.ones((1, 1, 3, 3)) + np.eye(3), Geometry(grid=6)
    found = power_iteration(weight, geometry, steps=60)
    assert found.value == pytest.approx(12.0)
    other = power_iteration(weight, geometry, steps=1, rng=rng).value
    assert other != power_iteration(weight, geometry, steps=1).value


def test_power_iteration_without_any_answer_is_zero():
    weight = np.array([[[1.0, 0.0, 0.0]]])  # the one weight reads padding only
    found = power_iteration(weight, Geometry(grid=1, boundary="zeros"))
    assert found.value == 0


def test_alternating_maximization_is_not_a_bound():
    weight = np.random.default_rng(47).standard_normal((4, 4, 3, 3))
    geometry = Geometry(grid=8)
    norm = norm_by_matrix(weight, geometry)
    found = tensor_norm(weight, geometry, steps=500)
    assert found.value < 0.9 * norm
    assert found.kind == "estimate"
    assert tensor_norm(weight, geometry, restarts=8).value > norm


@pytest.mark.parametrize("method", [{"steps": 3}, {"restarts": 2}])
def test_tensor_norm_finds_the_norm_of_a_product(method, rng):
    vectors = [rng.standard_normal(n) for n in (2, 3, 4, 5, 2)]
    weight = np.einsum("a,b,c,d,e->abcde", *vectors)
    want = math.sqrt(40) * math.prod(map(np.linalg.norm, vectors))
    found = tensor_norm(weight, Geometry(grid=6), **method).value
    assert found == pytest.approx(want)


def test_tensor_norm_of_one_tap_is_that_of_the_matrix(rng):
    weight = rng.standard_normal((6, 3, 1, 1))
    weight[:3] *= 3  # two groups, and the first has the norm
    want = np.linalg.norm(weight[:3, :, 0, 0], 2)
    found = tensor_norm(weight, Geometry(grid=4, groups=2), steps=500).value
    assert found == pytest.approx(want)


@pytest.mark.parametrize("case", CASES)
def test_tensor_norm_is_at_most_fantastic_four(case, rng):
    weight, geometry = make(case, rng)
    most = fantastic_four(weight, geometry).value
    assert tensor_norm(weight, geometry).value <= most * (1 + ROUNDING)


def test_tensor_norm_needs_complex_vectors():
    # The real part of the product of three complex numbers: real unit vectors reach 1,
    # complex ones sqrt(2), and the layer's norm is 2.
    weight = np.array([[[1.0, 0.0], [0.0, -1.0]], [[0.0, -1.0], [-1.0, 0.0]]])
    geometry = Geometry(grid=4)
    assert norm_by_matrix(weight, geometry) == pytest.approx(2.0)
    assert tensor_norm(weight, geometry).value == pytest.approx(2.0)


@pytest.mark.parametrize("case", sorted(TORUS.keys() - TAPS_THAT_MERGE_OR_READ_ZEROS))
def test_reshaped_norm_is_not_the_norm_of_the_layer(case, rng):
    weight, geometry = make(case, rng)
    ratio = norm_by_matrix(weight, geometry) / reshaped_norm(weight, geometry).value
    most = math.sqrt(math.prod(weight.shape[2:]))
    assert 1 - ROUNDING <= ratio <= most * (1 + ROUNDING)


def test_reshaped_norm_of_a_constant_kernel_is_a_third():
    weight, geometry = np.full((2, 2, 3, 3), 0.25), Geometry(grid=6)
    ratio = norm_by_matrix(weight, geometry) / reshaped_norm(weight, geometry).value
    assert ratio == pytest.approx(3.0)


@pytest.mark.parametrize("boundary", ["circular", "zeros"])
def test_normalizing_by_the_reshaped_norm_leaves_the_layer_above_one(boundary, rng):
    weight, geometry = rng.standard_normal((8, 8, 3, 3)), Geometry(8, boundary=boundary)
    weight /= reshaped_norm(weight, geometry).value
    assert norm_by_matrix(weight, geometry) > 1.4


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_reshaped_clip_is_the_nearest_matrix(case, dtype, rng):
    weight, geometry = make(case, rng, dtype)
    most = 0.6 * float(reshaped_norm(weight, geometry).value)
    clipped = reshaped_clip(weight, geometry, most)
    assert clipped.shape == weight.shape
    assert clipped.dtype == weight.dtype
    atol = 20 * np.finfo(dtype).eps * most
    assert reshaped_norm(clipped, geometry).value <= most + atol
    for before, after in zip(
        *(np.split(w, geometry.groups) for w in (weight, clipped))
    ):
        b, a = before.reshape(len(before), -1), after.reshape(len(after), -1)
        # What was taken away is the excess and no more.
        excess = np.maximum(np.linalg.svd(b, compute_uv=False) - most, 0)
        taken = np.linalg.svd(b - a, compute_uv=False)
        np.testing.assert_allclose(taken, np.sort(excess)[::-1], atol=atol)


def test_reshaped_clip_leaves_what_is_inside_and_does_not_bound_the_layer(rng):
    weight, geometry = rng.standard_normal((8, 8, 3, 3)), Geometry(grid=8)
    inside = reshaped_clip(weight, geometry, 100.0)
    np.testing.assert_allclose(inside, weight, atol=1e-13)
    clipped = reshaped_clip(weight, geometry, 1.0)
    assert norm_by_matrix(clipped, geometry) > 1.4


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["grouped", "zeros", "replicate", "transposed"])
def test_a_zero_kernel_has_norm_zero(case, method):
    shape, geometry = CASES[case]
    assert method(np.zeros(shape), Geometry(**geometry)).value == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_zero_group_does_not_count(method, rng):
    weight, geometry = rng.standard_normal((2, 1, 3)), Geometry(grid=5, groups=2)
    weight[1] = 0
    want = method(weight[:1], Geometry(grid=5)).value
    if method is power_iteration:  # starts from another vector
        want = method(weight[:1], Geometry(grid=5), steps=99).value
    assert method(weight, geometry).value == pytest.approx(want, rel=0.05)


@settings(max_examples=25, deadline=None)
@given(
    case=st.sampled_from(sorted(CASES)),
    factor=st.floats(-8, 8).filter(lambda c: abs(c) > 0.1),
    exponent=st.integers(-250, 250),
    seed=st.integers(0, 2**32 - 1),
)
def test_scaling_the_weight_scales_every_baseline(case, factor, exponent, seed):
    weight, geometry = make(case, np.random.default_rng(seed))
    factor *= 10.0**exponent
    for method in METHODS:
        options = {"steps": 5} if method is tensor_norm else {}
        before = method(weight, geometry, **options)
        after = method(factor * weight, geometry, **options)
        assert after.value == pytest.approx(abs(factor) * before.value, rel=1e-6, abs=0)
        assert after.kind == before.kind


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [("dilated-strided", "float32"), ("zeros-depthwise", "complex128")],
)
def test_every_library_gives_the_same(case, dtype, method, xp, rng):
    weight, geometry = make(case, rng, dtype)
    want, got = method(weight, geometry), method(xp.asarray(weight), geometry)
    assert (got.kind, got.method) == (want.kind, want.method)
    assert got.value.dtype == xp.float64
    assert float(got.value) == pytest.approx(float(want.value), rel=1e-10)


def test_every_library_clips_the_same(xp, rng):
    weight, geometry = make("grouped", rng, "float32")
    want, got = (reshaped_clip(w, geometry, 1.0) for w in (weight, xp.asarray(weight)))
    assert got.dtype == xp.float32
    np.testing.assert_allclose(np.asarray(got), want, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_torch_parameters_in_half_precision_will_do(method, torch, rng):
    weight, geometry = make("grouped", rng)
    half = torch.asarray(weight, dtype=torch.bfloat16).requires_grad_()
    exact = half.detach().double().numpy()
    assert float(method(half, geometry).value) == pytest.approx(
        method(exact, geometry).value
    )
    assert not method(half, geometry).value.requires_grad
    assert reshaped_clip(half, geometry, 1.0).dtype == torch.bfloat16


@pytest.mark.parametrize("method", METHODS)
def test_single_precision_of_jax_keeps_to_the_side(method, jax, rng):
    weights = [make("plain", rng, "float32")[0] for _ in range(8)]
    geometry = make("plain", rng)[1]
    with jax.enable_x64(False):
        found = [method(jax.numpy.asarray(w), geometry) for w in weights]
    for weight, single in zip(weights, found):
        assert single.value.dtype == np.float32
        double = method(weight, geometry).value
        if single.kind == "upper bound":
            assert float(single.value) >= double
        if single.kind == "lower bound":
            assert float(single.value) <= double
        assert float(single.value) == pytest.approx(double, rel=2e-7)


@pytest.mark.parametrize("boundary", ["circular", "zeros"])
def test_bounds_hold_for_every_grid_at_once(boundary, rng):
    weight = rng.standard_normal((3, 2, 3, 3))
    geometry = Geometry(grid=None, stride=2, boundary=boundary)
    norm = operator_norm(weight, geometry, rtol=1e-6)
    lower, upper = reshaped_norm(weight, geometry), fantastic_four(weight, geometry)
    assert (lower.kind, upper.kind) == ("lower bound", "upper bound")
    assert lower.value <= norm.upper
    assert upper.value >= norm.lower


@pytest.mark.parametrize("grid", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "boundary", [b for b in BOUNDARIES if b not in ("circular", "zeros")]
)
def test_a_bound_for_every_grid_holds_on_small_ones(boundary, grid, rng):
    weight = rng.standard_normal((1, 2, 5))
    found = fantastic_four(weight, Geometry(grid=None, boundary=boundary))
    assert found.value >= norm_by_matrix(weight, Geometry(grid, boundary=boundary))


@pytest.mark.parametrize("method", [power_iteration, gram_iteration])
@pytest.mark.parametrize("weight", [np.ones((1, 1, 3)), np.zeros((1, 1, 3))])
def test_iterations_need_a_grid(method, weight):
    with pytest.raises(ValueError, match=r"A grid is needed here, got grid None\."):
        method(weight, Geometry(grid=None))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda w, g: power_iteration(w, g, steps=0),
            "`steps` must be at least 1, got 0.",
        ),
        (
            lambda w, g: gram_iteration(w, g, steps=0),
            "`steps` must be at least 1, got 0.",
        ),
        (
            lambda w, g: tensor_norm(w, g, steps=-1),
            "`steps` must be at least 1, got -1.",
        ),
        (lambda w, g: tensor_norm(w, g, restarts=0), "`restarts` must be at least 1"),
        (
            lambda w, g: reshaped_clip(w, g, 0.0),
            "must be a positive, finite number, got 0.0.",
        ),
        (
            lambda w, g: reshaped_clip(w, g, math.nan),
            "must be a positive, finite number, got nan.",
        ),
        (lambda w, g: fantastic_four(w[0], g), "`weight` must have the axes"),
    ],
)
def test_errors_say_what_must_hold(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(np.ones((2, 2, 3)), Geometry(grid=4))


def test_a_baseline_is_frozen():
    found = Baseline(1.0, "estimate", "by hand")
    with pytest.raises(AttributeError):
        found.value = 2.0


def test_no_kernel_is_kept_alive(rng):
    """Caches remember where taps stand, not what they are."""

    def alive():
        gc.collect()
        found = gc.get_objects()
        return sum(type(x) is convspectra._maps.symbol.Taps for x in found)

    before = alive()
    gram_iteration(rng.standard_normal((3, 2, 3, 3)), Geometry(grid=(8, 8)))
    assert alive() == before
