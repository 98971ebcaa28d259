"""Clipping, scaling and projecting: inside, nearest, and as the paper has it."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optional import needed
from oracles import CASES, TORUS, make, norm_by_matrix, values_by_matrix

from convspectra import (
    Geometry,
    clip,
    operator_norm,
    project,
    scale_to,
    singular_values,
)
from convspectra._bound.blocks import torus_blocks
from convspectra._bound.enforce import enforce
from convspectra._bound.project import nearest_kernel
from convspectra._cli.embedded import file_or_embedded
from convspectra._layer.boundary import BOUNDARIES
from convspectra._layer.stencil import embedding, stencil_of
from convspectra._route.bound import projects_by_matrix
from convspectra._route.records import NormRoute
from convspectra._route.torus import torus_route


def distance(a, b):
    return float(np.linalg.norm(np.asarray(a) - np.asarray(b)))


def paper_clip(weight, grid, bound):
    """The paper's clip as it is printed there, for kernels that fit the grid."""
    transform = np.fft.fft2(weight, grid).transpose(2, 3, 0, 1)
    u, s, vh = np.linalg.svd(transform, full_matrices=False)
    clipped = (u * np.minimum(s, bound)[..., None, :]) @ vh
    kernel = np.fft.ifft2(clipped.transpose(2, 3, 0, 1)).real
    return kernel[:, :, : weight.shape[2], : weight.shape[3]]


@pytest.mark.parametrize("shape", [(4, 4, 3, 3), (3, 5, 3, 2), (5, 2, 2, 3)])
def test_one_round_is_the_paper_s_clip(shape, rng):
    weight = rng.standard_normal(shape)
    bound = 0.5 * norm_by_matrix(weight, Geometry((6, 7)))
    got = clip(weight, Geometry((6, 7)), bound)
    np.testing.assert_allclose(got, paper_clip(weight, (6, 7), bound), atol=1e-12)
    twice = clip(weight, Geometry((6, 7)), bound, rounds=2)
    np.testing.assert_allclose(twice, paper_clip(got, (6, 7), bound), atol=1e-12)


def test_one_clip_leaves_the_ball_and_more_rounds_come_back(rng):
    weight, geometry = rng.standard_normal((16, 16, 3, 3)), Geometry(16)
    bound = 0.6 * operator_norm(weight, geometry).lower
    ratios = [
        operator_norm(clip(weight, geometry, bound, rounds), geometry).lower / bound
        for rounds in (1, 10, 100)
    ]
    assert 1.1 < ratios[0] < 1.5
    assert ratios[0] > ratios[1] > ratios[2] > 1


@pytest.mark.parametrize("case", [case for case in TORUS if "dilated" not in case])
def test_where_the_kernel_fills_the_grid_one_clip_suffices(case, rng):
    # With as many taps as sites nothing is cropped, merged taps included.
    shape, arguments = CASES[case]
    geometry = Geometry(**arguments).broadcast_to(len(shape) - 2)
    columns = geometry.out_grid(shape[2:]) if geometry.transposed else geometry.grid
    weight = rng.standard_normal((*shape[:2], *(n + 1 for n in columns)))
    circular = {"padding": "same", "output_padding": 0, "boundary": "circular"}
    geometry = Geometry(**arguments | circular)
    norm = norm_by_matrix(weight, geometry)
    found = clip(weight, geometry, 0.5 * norm)
    want = np.minimum(values_by_matrix(weight, geometry), 0.5 * norm)
    np.testing.assert_allclose(
        values_by_matrix(found, geometry), want, atol=1e-12 * norm
    )


def test_values_are_clipped_from_below_too(rng):
    # A 1x1 kernel is never cropped.
    weight, geometry = rng.standard_normal((4, 3, 1, 1)), Geometry(3)
    found = clip(weight, geometry, 1.5, min_norm=0.7)
    want = np.clip(np.linalg.svd(weight[:, :, 0, 0], compute_uv=False), 0.7, 1.5)
    got = np.linalg.svd(found[:, :, 0, 0], compute_uv=False)
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_rounds_draw_all_values_to_one(rng):
    weight, geometry = 0.1 * rng.standard_normal((6, 4, 3, 3)), Geometry(6)
    spread = []
    for rounds in (1, 10, 100):
        found = clip(weight, geometry, 1.0, rounds, min_norm=1.0)
        values = singular_values(found, geometry)
        spread.append(values.max() - values.min())
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 0.2


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e-3, 1.0])
def test_a_kernel_however_small_is_drawn_to_the_same_isometry(scale, rng):
    weight, geometry = rng.standard_normal((4, 3, 1, 1)), Geometry(3)
    want = clip(weight, geometry, 1.0, min_norm=1.0)
    found = clip(scale * weight, geometry, 1.0, min_norm=1.0)
    np.testing.assert_allclose(found, want, atol=1e-12)


def test_a_zero_kernel_is_raised_too():
    found = clip(np.zeros((2, 2, 1)), Geometry(4), 1.0, min_norm=1.0)
    np.testing.assert_allclose(singular_values(found, Geometry(4)), 1, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_projection_is_inside_and_close_to_the_nearest(case, rng):
    weight, geometry = make(case, rng)
    norm = norm_by_matrix(weight, geometry)
    found = project(weight, geometry, 0.7 * norm)
    assert found.weight.shape == weight.shape
    assert norm_by_matrix(found.weight, geometry) <= 0.7 * norm
    assert found.after.upper <= 0.7 * norm
    assert found.before.lower <= norm <= found.before.upper
    assert found.gap <= 2e-3
    assert found.distance == pytest.approx(distance(found.weight, weight))
    scaled = scale_to(clip(weight, geometry, 0.7 * norm), geometry, 0.7 * norm)
    assert found.distance <= distance(scaled, weight) * (1 + 1e-3)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (8, 24, 3, 3), (8, 8, 5, 5)])
def test_the_projection_moves_less_than_clip_and_rescale(shape, part, rng):
    weight, geometry = rng.standard_normal(shape), Geometry(16)
    bound = part * operator_norm(weight, geometry).lower
    found = project(weight, geometry, bound)
    clipped = scale_to(clip(weight, geometry, bound), geometry, bound)
    assert found.gap <= 1e-3
    assert found.distance < 0.97 * distance(clipped, weight)


def test_a_small_gap_can_be_asked_for(rng):
    weight, geometry = rng.standard_normal((8, 8, 3, 3)), Geometry(8)
    bound = 0.6 * operator_norm(weight, geometry).lower
    found = project(weight, geometry, bound, rtol=1e-6)
    assert found.gap <= 3e-6  # what the certified rescale gives away included
    assert found.rounds < 40


@pytest.mark.parametrize("part", [0.15, 0.6])
def test_a_small_gap_is_reached_for_a_trained_first_layer(part):
    onnx = needed("onnx")
    with file_or_embedded(None) as path:
        model = onnx.load(path)
    stem = next(x for x in model.graph.initializer if x.name == "stem.conv.weight")
    weight = onnx.numpy_helper.to_array(stem).astype("float64")
    bound = part * float(operator_norm(weight, Geometry(32)).lower)
    found = project(weight, Geometry(32), bound, rtol=1e-6)
    assert found.gap <= 1e-6
    assert found.rounds <= 80


def test_the_projection_of_a_one_by_one_kernel_is_known(rng):
    weight, geometry = rng.standard_normal((5, 4, 1, 1)), Geometry((3, 4))
    u, s, vh = np.linalg.svd(weight[:, :, 0, 0], full_matrices=False)
    bound = 0.5 * s[0]
    want = (u * np.minimum(s, bound)) @ vh
    found = project(weight, geometry, bound, rtol=1e-9)
    np.testing.assert_allclose(found.weight[:, :, 0, 0], want, atol=1e-4)


def test_no_feasible_kernel_that_we_can_find_is_nearer(rng):
    for case in ("plain", "strided", "grouped", "zeros", "replicate"):
        weight, geometry = make(case, rng)
        bound = 0.6 * norm_by_matrix(weight, geometry)
        found = project(weight, geometry, bound, rtol=1e-6)
        for _ in range(200):
            step = rng.standard_normal(weight.shape) * rng.choice([1e-3, 1e-2, 1e-1])
            towards = found.weight + rng.choice([0, 0.02]) * (weight - found.weight)
            other = towards + step
            other = other * min(1, bound / norm_by_matrix(other, geometry))
            assert distance(other, weight) >= found.distance * (1 - 1e-6)


@pytest.mark.parametrize("case", ["plain", "zeros", "grouped"])
def test_a_kernel_inside_stays_put(case, xp, rng):
    weight, geometry = make(case, rng)
    norm = norm_by_matrix(weight, geometry)
    found = project(xp.asarray(weight), geometry, 1.01 * norm)
    np.testing.assert_array_equal(np.asarray(found.weight), weight)
    assert (float(found.distance), int(found.rounds), float(found.gap)) == (0, 0, 0)
    kept = scale_to(xp.asarray(weight), geometry, 1.01 * norm)
    np.testing.assert_array_equal(np.asarray(kept), weight)
    clipped = clip(xp.asarray(weight), Geometry(geometry.grid), 100 * norm)
    np.testing.assert_allclose(np.asarray(clipped), weight, atol=1e-14)


@pytest.mark.parametrize("case", ["plain", "strided", "zeros"])
def test_every_library_projects_alike(case, xp, rng):
    weight, geometry = make(case, rng)
    bound = 0.6 * norm_by_matrix(weight, geometry)
    want = project(weight, geometry, bound)
    found = project(xp.asarray(weight), geometry, bound)
    assert type(found.weight) is type(xp.asarray(weight))
    np.testing.assert_allclose(np.asarray(found.weight), want.weight, atol=1e-6)
    clipped = clip(xp.asarray(weight), geometry, bound)
    np.testing.assert_allclose(
        np.asarray(clipped), clip(weight, geometry, bound), atol=1e-12
    )


def test_everything_works_under_jit(jax, rng):
    weight, geometry = make("strided", rng)
    bound = float(0.6 * norm_by_matrix(weight, geometry))
    clipped = jax.jit(lambda w: clip(w, geometry, bound))(weight)
    np.testing.assert_allclose(clipped, clip(weight, geometry, bound), atol=1e-12)
    upper = jax.jit(lambda w: project(w, geometry, bound).after.upper)(weight)
    assert float(upper) <= bound
    scaled = jax.jit(lambda w: scale_to(w, geometry, bound))(weight)
    assert norm_by_matrix(np.asarray(scaled), geometry) <= bound


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_low_precision_comes_back_inside_in_its_own_dtype(dtype, torch, rng):
    weight = torch.asarray(rng.standard_normal((4, 3, 3, 3))).to(getattr(torch, dtype))
    geometry = Geometry(6)
    for found in (
        project(weight, geometry, 2.0).weight,
        scale_to(weight, geometry, 2.0),
    ):
        assert found.dtype == weight.dtype
        assert norm_by_matrix(found.double().numpy(), geometry) <= 2.0
        assert norm_by_matrix(found.double().numpy(), geometry) >= 1.9


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("stride", [1, 2])
def test_a_projection_for_every_grid_holds_on_each(boundary, stride, rng):
    weight = rng.standard_normal((3, 2, 3, 3))
    rest = {"stride": stride, "boundary": boundary}
    bound = float(0.6 * operator_norm(weight, Geometry(None, **rest)).upper)
    found = project(weight, Geometry(None, **rest), bound)
    assert found.after.upper <= bound
    assert found.gap <= 2e-2
    for n in (stride, 2 * stride, 5 * stride):
        assert norm_by_matrix(found.weight, Geometry(n, **rest)) <= bound
    clip(weight, Geometry(None, **rest), bound)


@pytest.mark.parametrize("case", ["zeros", "reflect", "circular-stride-not-dividing"])
def test_layers_past_the_matrix_are_projected_on_the_torus_that_holds_them(case, rng):
    geometry = replace(make(case, rng)[1], grid=9)
    weight = rng.standard_normal((16, 16, 3, 3)) / 12
    assert not projects_by_matrix(stencil_of(weight, geometry))
    bound = 0.6 * norm_by_matrix(weight, geometry)
    assert norm_by_matrix(project(weight, geometry, bound).weight, geometry) <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("boundary", ["circular", "zeros"])
@pytest.mark.parametrize("exponent", [-100, 100])
def test_the_scale_of_the_kernel_does_not_matter(exponent, boundary, dtype, rng):
    scale = 2.0 ** (exponent * (1 if dtype == "float32" else 8))
    weight = rng.standard_normal((3, 2, 3, 3)).astype(dtype)
    geometry = Geometry(4, boundary=boundary)
    for method in (clip, scale_to, lambda *a: project(*a).weight):
        want = method(weight, geometry, 1.0)
        found = method((weight * scale).astype(dtype), geometry, scale)
        room = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(found / scale, want, atol=room)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bound_far_beyond_the_kernel_changes_nothing(dtype):
    weight = np.full((2, 2, 3), np.finfo(dtype).smallest_subnormal, dtype=dtype)
    for method in (clip, scale_to, lambda *a: project(*a).weight):
        np.testing.assert_array_equal(method(weight, Geometry(4), 1e30), weight)


@pytest.mark.parametrize("bound", [1e-8, 1e-200])
@pytest.mark.parametrize("boundary", ["circular", "zeros"])
def test_a_bound_whose_square_is_zero_is_satisfied(bound, boundary, rng):
    weight = rng.standard_normal((4, 3, 3, 3))
    geometry = Geometry((8, 8), padding=1, boundary=boundary)
    found = project(weight, geometry, bound)
    assert found.gap <= 1e-3
    assert norm_by_matrix(found.weight / bound, geometry) <= 1 + 1e-12


def test_scaling_keeps_the_direction(rng):
    weight, geometry = make("zeros", rng)
    norm = norm_by_matrix(weight, geometry)
    found = scale_to(weight, geometry, 0.5 * norm)
    np.testing.assert_allclose(found / found.flat[0], weight / weight.flat[0])
    assert norm_by_matrix(found, geometry) <= 0.5 * norm
    assert norm_by_matrix(found, geometry) >= 0.5 * norm * (1 - 1e-5)


@pytest.mark.parametrize("function", [clip, project, scale_to])
@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), float("inf"), "1"])
def test_a_bound_is_positive_and_finite(function, bound):
    with pytest.raises(ValueError, match=r"`max_norm` must be a positive, finite numb"):
        function(np.ones((1, 1, 3)), Geometry(4), bound)


def test_what_else_is_refused():
    weight, geometry = np.ones((1, 1, 3)), Geometry(4)
    with pytest.raises(ValueError, match="`min_norm` must be between 0 and `max_norm`"):
        clip(weight, geometry, 1.0, min_norm=2.0)
    with pytest.raises(ValueError, match="`rounds` must be at least 1, got 0"):
        clip(weight, geometry, 1.0, rounds=0)
    with pytest.raises(ValueError, match="`rtol` must be between 0 and 1, got 0"):
        project(weight, geometry, 1.0, rtol=0)


@given(
    shape=st.tuples(*[st.integers(1, 4)] * 4),
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    part=st.floats(0.05, 0.99),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=50)
def test_projecting_twice_is_projecting_once(shape, grid, part, seed):
    weight = np.random.default_rng(seed).standard_normal(shape)
    geometry = Geometry(grid)
    bound = float(part * norm_by_matrix(weight, geometry)) + 1e-6
    once = project(weight, geometry, bound)
    assert once.after.upper <= bound
    np.testing.assert_array_equal(
        project(once.weight, geometry, bound).weight, once.weight
    )


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"groups": 2}])
@pytest.mark.parametrize("kind", [float, complex])
def test_phase_factors_that_are_not_kept_are_the_same(kind, options, monkeypatch, rng):
    weight = rng.standard_normal((4, 4 // options.get("groups", 1), 3, 3)).astype(kind)
    geometry = Geometry((8, 6), **options)
    stencil = stencil_of(weight, geometry)
    found = [clip(weight, geometry, 2.0), project(weight, geometry, 2.0).weight]
    assert torus_blocks(weight, stencil).table is not None
    monkeypatch.setattr("convspectra._maps.symbol.KEPT_BYTES", 0)
    assert torus_blocks(weight, stencil).table is None
    again = [clip(weight, geometry, 2.0), project(weight, geometry, 2.0).weight]
    np.testing.assert_allclose(again, found, rtol=1e-10, atol=1e-12)


def test_nothing_large_is_kept_after_a_clip_on_a_large_grid(rng):
    weight = rng.standard_normal((4, 4, 7, 7), dtype=np.float32)
    clip(weight, Geometry((8, 8)), 3.0)
    tracemalloc.start()
    try:
        clip(weight, Geometry((256, 256)), 3.0)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 2**22  # 26 MB are the phase factors


def test_a_projection_names_what_has_certified_its_bounds(monkeypatch, rng):
    """Where the bound that training gets is below the other one, it counts."""
    weight, geometry = rng.standard_normal((3, 3, 3)), Geometry(9, boundary="zeros")
    torus = torus_route(
        "embedding",
        embedding(stencil_of(weight, geometry))[0],
        real=True,
        on_host=True,
    )

    def route(*_, upper_only, **__):
        return torus if upper_only else NormRoute("reshaped", "one matrix")

    monkeypatch.setattr("convspectra._norm.norm_bounds.norm_route", route)
    norm = norm_by_matrix(weight, geometry)
    found = project(weight, geometry, 0.8 * norm)
    assert (found.before.method, found.after.method) == ("reshaped", "embedding")
    assert norm_by_matrix(found.weight, geometry) <= found.after.upper <= 0.8 * norm


@pytest.mark.parametrize("method", ["project", "scale"])
def test_a_kernel_at_two_geometries_satisfies_the_bound_at_both(method):
    # Here the projection for the second alone violates the bound at the first again.
    weight = np.random.default_rng(13).standard_normal((2, 2, 3))
    geometries = [Geometry(4), Geometry(5, boundary="zeros", padding=1)]
    bound = 0.3 * norm_by_matrix(weight, geometries[0])
    found = enforce(weight, geometries, bound, method)
    largest = max(norm_by_matrix(found.weight, g) for g in geometries)
    assert largest <= found.after <= bound


def test_a_layer_that_is_held_by_a_torus_is_not_scaled_down_further(rng):
    """The torus that was brought within the bound is what certifies it."""
    weight = rng.standard_normal((12, 12, 3, 3))
    geometry = Geometry(grid=28, stride=2, padding=1, boundary="zeros")
    norm = float(operator_norm(weight, geometry).upper)
    found = project(weight, geometry, 0.6 * norm)
    assert found.rounds > 0
    assert found.after.upper <= 0.6 * norm
    assert found.gap <= 1e-3


@pytest.mark.parametrize(("grid", "stride"), [((10, 10), 1), ((14, 14), 2)])
def test_a_layer_with_zeros_ends_just_inside_of_its_own_bound(grid, stride, rng):
    """The torus around it exceeds the bound, and the kernel changes less for that."""
    weight = rng.standard_normal((8, 8, 3, 3))
    geometry = Geometry(grid, boundary="zeros", stride=stride, padding=1)
    stencil = stencil_of(weight, geometry)
    bound = 0.8 * operator_norm(weight, geometry).upper
    found = project(weight, geometry, bound)
    norm = norm_by_matrix(found.weight, geometry)
    assert 0.999 * bound < norm <= bound
    assert found.after.lower <= norm * (1 + 1e-13)
    assert norm <= found.after.upper * (1 + 1e-13)
    assert found.after.upper <= bound
    alone = nearest_kernel(weight, stencil, bound, rtol=1e-3)
    assert norm_by_matrix(alone.weight, geometry) < 0.9995 * bound
    assert found.distance < 0.999 * alone.distance


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(8),
        Geometry(None),
        Geometry(None, boundary="zeros"),
        Geometry(6, boundary="zeros"),
        Geometry(24, boundary="zeros"),
        Geometry(40, boundary="reflect"),
    ],
    ids=str,
)
def test_bounds_that_are_hardly_below_the_norm_are_satisfied(geometry, rng):
    # No block need exceed such a bound: only what is certified of the norm does.
    weight = rng.standard_normal((4, 4, 3, 3))
    norm = operator_norm(weight, geometry)
    for bound in (
        *(float(norm.lower) * part for part in (0.9999, 0.99995, 1.0, 1.00005)),
        *((norm.lower + norm.upper) / 2, np.nextafter(norm.upper, 0)),
    ):
        found = project(weight, geometry, float(bound))
        assert found.after.upper <= bound
        scaled = scale_to(weight, geometry, float(bound))
        assert found.distance <= distance(scaled, weight) * (1 + 1e-9)
        assert found.distance <= 3e-3 * np.linalg.norm(weight)
        assert 0 <= found.gap <= 1
        again = enforce(weight, [geometry], float(bound), "project", in_training=True)
        assert operator_norm(again.weight, geometry).lower <= bound


@pytest.mark.parametrize("grid", [None, 40])
@pytest.mark.parametrize("boundary", ["zeros", "circular"])
def test_a_bound_below_all_numbers_of_the_precision_gives_zeros(grid, boundary, rng):
    weight = rng.standard_normal((2, 2, 3, 3)).astype("float32")
    found = project(weight, Geometry(grid, boundary=boundary), 1e-50)
    assert not np.any(found.weight)
    assert found.after.upper == 0
    assert found.distance == pytest.approx(np.linalg.norm(weight))


def test_what_is_inside_but_not_by_its_first_certificate_stays_put():
    weight = np.zeros((16, 16, 3, 3))
    weight[range(16), range(16), 1, 1] = 1
    found = project(weight, Geometry(16, boundary="zeros"), 1.0000003)
    assert found.before.upper > 1.0000003 >= found.after.upper
    assert (found.distance, found.gap) == (0, 0)
    np.testing.assert_array_equal(found.weight, weight)


def test_a_training_with_depthwise_layers_stays_inside_on_every_grid(rng):
    weight, geometry = rng.standard_normal((6, 1, 3, 3)), Geometry(None, groups=6)
    for _ in range(10):
        weight = weight + 1e-3 * rng.standard_normal(weight.shape)
        weight = enforce(weight, [geometry], 1.0, "project", in_training=True).weight
        assert operator_norm(weight, geometry).lower <= 1
