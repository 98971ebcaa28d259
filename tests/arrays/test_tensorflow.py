"""TensorFlow's tensors: at once, in graphs and under gradient tapes."""

import numpy as np
import pytest
from optional import needed
from oracles import descending, make, norm_by_matrix, tolerance, values_by_matrix

import convspectra as cs
from convspectra import Geometry, operator_norm, singular_values

tf = needed("tensorflow")
STEP = 1e-5
# At once all cases run, with those of the other libraries.
IN_GRAPH = [
    "plain",
    "kernel-past-grid",
    "dilated-strided",
    "depthwise-strided",
    "one-by-one",
    "transposed-grouped",
    "three-dimensional",
    "zeros-transposed",
    "reflect-strided",
]


def in_graph(function, weight, geometry, *, autograph=False):
    """`function` in a graph that knows nothing of the weight but its shape and type.

    By itself TensorFlow rewrites all code that it traces (`autograph`), which changes
    nothing here and takes most of the time.
    """
    spec = tf.TensorSpec(weight.shape, tf.as_dtype(weight.dtype))
    traced = tf.function(
        lambda w: function(w, geometry), input_signature=[spec], autograph=autograph
    )
    return traced(tf.constant(weight))


@pytest.mark.parametrize("case", IN_GRAPH)
def test_values_and_norms_in_a_graph_are_those_of_the_matrix(case, rng):
    weight, geometry = make(case, rng, "float32")
    want = values_by_matrix(weight, geometry)

    def all_of_it(w, g):
        found = operator_norm(w, g)
        return singular_values(w, g), found.lower, found.upper

    rewrite = case == "one-by-one"
    values, lower, upper = in_graph(all_of_it, weight, geometry, autograph=rewrite)
    close = tolerance(want, "float32")
    np.testing.assert_allclose(descending(values.numpy()), want, atol=close)
    assert lower.numpy() <= want[0] * (1 + 1e-12)
    assert upper.numpy() >= want[0] * (1 - 1e-12)
    assert upper.dtype == tf.float64


@pytest.mark.parametrize("case", ["plain", "strided", "transposed-strided", "zeros"])
def test_clip_and_project_in_a_graph_are_those_of_numpy(case, rng):
    weight, geometry = make(case, rng, "float32")
    most = 0.6 * norm_by_matrix(weight, geometry)

    def all_of_it(w, g):
        projected = cs.project(w, g, most)
        return (
            cs.clip(w, g, most),
            cs.scale_to(w, g, most),
            projected.weight,
            projected.after.upper,
            projected.rounds,
        )

    clipped, scaled, projected, after, rounds = in_graph(
        all_of_it, weight, geometry, autograph=case == "plain"
    )
    want = cs.project(weight, geometry, most)
    np.testing.assert_array_equal(clipped, cs.clip(weight, geometry, most))
    np.testing.assert_array_equal(scaled, cs.scale_to(weight, geometry, most))
    np.testing.assert_array_equal(projected, want.weight)
    assert (after, rounds) == (want.after.upper, want.rounds)
    assert clipped.shape == scaled.shape == projected.shape == weight.shape


def upper(weight, geometry):
    return operator_norm(weight, geometry, 1e-9).upper


def total(weight, geometry):
    """A smooth symmetric function of all values."""
    cubes = singular_values(weight, geometry) ** 3
    return cubes.sum() if isinstance(cubes, np.ndarray) else tf.reduce_sum(cubes)


def gradient(function, weight, geometry):
    with tf.GradientTape() as tape:
        tape.watch(weight)
        value = function(weight, geometry)
    return tape.gradient(value, weight)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("function", [upper, total])
@pytest.mark.parametrize(
    "case", ["plain", "strided", "grouped", "one-by-one", "depthwise", "zeros"]
)
def test_gradients_are_those_of_finite_differences(case, function, dtype, rng):
    weight, geometry = make(case, rng, dtype)
    direction = rng.standard_normal(weight.shape).astype(dtype)
    if dtype == "complex128":
        direction = direction + 1j * rng.standard_normal(weight.shape)
    ahead = float(function(weight + STEP * direction, geometry))
    behind = float(function(weight - STEP * direction, geometry))
    want = (ahead - behind) / (2 * STEP)
    found = [gradient(function, tf.constant(weight), geometry)]
    if dtype == "float64":
        found += [in_graph(lambda w, g: gradient(function, w, g), weight, geometry)]
    for got in found:
        along = np.sum(np.real(np.conj(got.numpy()) * direction))
        assert along == pytest.approx(want, rel=1e-5)


REPEATED = np.eye(3)[:, :, None, None] * np.ones((1, 1, 1, 1))
DEPTHWISE = np.zeros((3, 1, 3, 3))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("weight", [np.zeros((3, 3, 3, 3)), REPEATED, DEPTHWISE])
@pytest.mark.parametrize("function", [upper, total])
def test_gradients_are_finite_at_zero_and_at_repeated_values(function, weight, stride):
    groups = 3 // weight.shape[1]
    geometry = Geometry(4, stride=stride, groups=groups)
    for got in (
        gradient(function, tf.constant(weight), geometry),
        in_graph(lambda w, g: gradient(function, w, g), weight, geometry),
    ):
        assert np.all(np.isfinite(got.numpy()))


def test_a_variable_is_as_good_as_a_tensor(rng):
    weight, geometry = make("plain", rng, "float32")
    variable = tf.Variable(weight)
    with tf.GradientTape() as tape:  # which watches variables by itself
        value = upper(variable, geometry)
    got = tape.gradient(value, variable)
    want = gradient(upper, tf.constant(weight), geometry)
    np.testing.assert_array_equal(got, want)
    layer = cs.Layer.from_hwio("conv", variable, geometry)
    assert layer.weight.shape == (3, 3, 3, 3)
    assert geometry.out_grid(variable.shape[2:]) == (6, 5)
    assert cs.spectra([layer]).layers[0].norm.upper > 0


def test_without_a_tape_values_come_from_our_own_routines(rng, monkeypatch):
    weight, geometry = make("plain", rng)
    monkeypatch.setattr(tf.linalg, "svd", None)
    got = singular_values(tf.constant(weight), geometry)
    np.testing.assert_array_equal(got, singular_values(weight, geometry))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_stays_half_precision(dtype, rng):
    weight = tf.cast(rng.standard_normal((3, 2, 3, 3)), dtype)
    geometry = Geometry(5)
    scaled = cs.scale_to(weight, geometry, 0.5)
    assert scaled.dtype == dtype
    double = tf.cast(scaled, tf.float64).numpy()
    assert 0.45 < norm_by_matrix(double, geometry) <= 0.5
    assert gradient(upper, weight, geometry).dtype == dtype
    assert singular_values(weight, geometry).dtype == tf.float32


def test_nan_is_refused_at_once_and_goes_through_a_graph():
    weight = np.full((2, 2, 3), np.nan)
    with pytest.raises(ValueError, match="`weight` must be finite"):
        operator_norm(tf.constant(weight), Geometry(4))
    assert np.isnan(in_graph(upper, weight, Geometry(4)))
    scaled = in_graph(lambda w, g: cs.scale_to(w, g, 1.0), weight, Geometry(4))
    assert np.all(np.isnan(scaled))


def test_what_xla_compiles_is_told_so():
    compiled = tf.function(lambda w: upper(w, Geometry(4)), jit_compile=True)
    with pytest.raises(ValueError, match=r"Set `jit_compile=False`"):
        compiled(tf.ones((2, 2, 3)))


def test_integers_and_unknown_shapes_are_refused():
    with pytest.raises(TypeError, match=r"must be floating point .* got int8"):
        operator_norm(tf.ones((2, 2, 3), tf.int8), Geometry(4))
    spec = tf.TensorSpec((None, 2, 3), tf.float32)
    traced = tf.function(lambda w: upper(w, Geometry(4)), input_signature=[spec])
    with pytest.raises(ValueError, match=r"known shape, got \(None, 2, 3\)"):
        traced(tf.ones((2, 2, 3)))
