"""Layers of Keras models, against what Keras itself computes with them."""

import numpy as np
import pytest
from keras_layers import (
    CASES,
    IMAGE,
    drawn,
    layer_of,
    matrices_of,
)
from optional import needed

import convspectra as cs

needed("keras")
from convspectra.keras import clip_, layers, project_  # noqa: E402

FIRST = "channels_first"


# All cases with the channels last, and one of each kind with the channels first.
KEYS = [(name, "channels_last") for name in CASES] + [
    (name, FIRST)
    for name in ("same-strided", "grouped", "causal", "up-same-odd", "separable")
]


def model_of(keras, name, data_format):
    """A model of one layer, with random numbers that take no time to compile."""
    kind, shape, _ = CASES[name]
    more = {} if kind == "Dense" else {"data_format": data_format}
    shape = (shape[-1], *shape[:-1]) if data_format == FIRST else shape
    layer = layer_of(keras, name, **more, **zeros(kind))
    model = keras.Sequential([keras.Input(shape), layer])
    rng = np.random.default_rng(0)
    model.set_weights([rng.standard_normal(w.shape) / 4 for w in model.get_weights()])
    return model


def zeros(kind):
    """What a layer of this kind takes to begin with zeros."""
    names = ["kernel"]
    if kind.startswith("Depthwise"):
        names = ["depthwise"]
    if kind.startswith("Separable"):
        names = ["depthwise", "pointwise"]
    return {f"{name}_initializer": "zeros" for name in names}


def product(found):
    """The product of the matrices of layers, one after another."""
    matrix = np.eye(1)
    for layer in found:
        one = cs.dense_matrix(layer.weight, layer.geometry)
        matrix = one if matrix.shape == (1, 1) else one @ matrix
    return matrix


@pytest.fixture(scope="module")
def models(keras):
    return {key: model_of(keras, *key) for key in KEYS}


@pytest.fixture(scope="module")
def matrices(models):
    """The matrices that Keras makes of each model's layer."""
    shown = {key: (model.layers[0], CASES[key[0]][1]) for key, model in models.items()}
    return matrices_of(shown, [key for key in KEYS if key[1] == FIRST])


@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_kernels_and_geometries_make_the_matrices_of_their_layers(
    key, models, matrices
):
    found, want = layers(models[key]), matrices[key]
    assert len(found) == 1 + key[0].startswith("separable")
    np.testing.assert_allclose(product(found), want, atol=5e-6)
    if len(found) == 1:
        norm = cs.operator_norm(found[0].weight, found[0].geometry)
        exact = np.linalg.norm(want.astype("float64"), 2)
        assert norm.lower <= exact * (1 + 1e-6)
        assert norm.upper >= exact * (1 - 1e-6)
        assert norm.gap < 1e-3


def test_a_batch_norm_is_folded_with_its_moving_statistics(keras):
    shape, zero = (5, 6, 4), zeros("Conv2D")
    norms = [keras.layers.BatchNormalization(name=f"norm{i}") for i in range(4)]
    start = keras.Input(shape)
    x = norms[0](keras.layers.Conv2D(6, 3, name="a", **zero)(start))
    both = zeros("Separable")
    x = norms[1](keras.layers.SeparableConv2D(5, 2, name="b", **both)(x))
    relu = keras.layers.Conv2D(4, 1, name="c", activation="relu", **zero)
    x = norms[2](relu(x))  # which is not folded: a ReLU comes between them
    up = keras.layers.Conv2DTranspose(4, 2, strides=2, padding="same", name="d", **zero)
    model = keras.Model(start, norms[3](up(x)))
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.5, 2, w.shape) for w in model.get_weights()])
    found = layers(model, fold_batch_norm=True)
    assert [one.name for one in found] == [
        "a/kernel+norm0",
        "b/depthwise_kernel",
        "b/pointwise_kernel+norm1",
        "c/kernel",
        "d/kernel+norm3",
    ]

    def with_norm(layer, norm):
        return lambda x: norm(layer(x), training=False)

    by_name = {one.name[0]: [] for one in found}
    for one in found:
        by_name[one.name[0]].append(one)
    seen = {
        "a": (norms[0], shape),
        "b": (norms[1], (3, 4, 6)),
        "d": (norms[3], (2, 3, 4)),
    }
    want = matrices_of(
        {
            name: (with_norm(model.get_layer(name), norm), size)
            for name, (norm, size) in seen.items()
        }
    )
    for name, matrix in want.items():
        np.testing.assert_allclose(product(by_name[name]), matrix, rtol=1e-5, atol=1e-5)


def test_a_single_layer_will_do(keras):
    layer = keras.layers.Conv1D(2, 3, kernel_initializer="zeros", name="one")
    layer.build((None, 7, 2))
    (found,) = layers(layer)
    assert (found.name, found.geometry.grid) == ("one/kernel", (7,))


def test_an_int8_layer_is_named(keras):
    head = keras.layers.Dense(3, kernel_initializer=drawn, name="head")
    conv = keras.layers.Conv1D(4, 1, kernel_initializer=drawn, name="conv")
    model = keras.Sequential([keras.Input((2, 4)), head])
    head.quantize("int8")
    found = layers(model)
    assert len(found) == 0
    assert found.skipped["head/kernel"].startswith("its numbers are int8")
    with pytest.raises(ValueError, match=r"it has none\. .* its numbers are int8"):
        clip_(model, 1.0)
    model = keras.Sequential([keras.Input((2, 4)), conv, head])
    assert "int8" in project_(model, 0.1, linear=True).skipped["head/kernel"]
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"'head\*' matches none .* numbers are int8"):
        project_(model, {"head*": 0.01, "*": 0.01})
    for got, want in zip(model.get_weights(), before):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("before", [True, False])
def test_a_batch_norm_after_a_layer_without_a_known_kernel_is_not_folded(before, keras):
    conv = keras.layers.Conv2D(4, 1, kernel_initializer=drawn, name="conv")
    head = keras.layers.Dense(4, kernel_initializer=drawn, name="head")
    norm = keras.layers.BatchNormalization(name="norm")
    first = [conv] if before else []
    model = keras.Sequential([keras.Input((2, 2, 4)), *first, head, norm])
    head.quantize("int8")
    found = layers(model, fold_batch_norm=True)
    assert [one.name for one in found] == ["conv/kernel"] * before
    assert "int8" in found.skipped["head/kernel"]


def test_inputs_may_be_passed_by_their_names(keras):
    conv = keras.layers.Conv2D(4, 1, kernel_initializer=drawn, name="conv")
    norm = keras.layers.BatchNormalization(name="norm")
    start = keras.Input((2, 2, 4))
    block = keras.Model(start, norm(inputs=conv(inputs=start)), name="block")
    model = keras.Model(start, block(inputs=start))
    (found,) = layers(model, fold_batch_norm=True)
    assert (found.name, found.geometry.grid) == ("block/conv/kernel+norm", (2, 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions_stay_what_they_are(dtype, keras):
    if dtype == "float64" and keras.backend.backend() == "jax":
        return  # which has none by itself
    options = {"dtype": dtype, "kernel_initializer": drawn}
    layer = keras.layers.Conv2D(3, 3, name="conv", **options)
    model = keras.Sequential([keras.Input((6, 6, 3)), layer])
    done = project_(model, 0.5)
    assert layer.kernel.dtype == dtype
    (found,) = layers(model)
    assert found.weight.dtype.name == dtype
    upper = cs.operator_norm(found.weight, found.geometry, 1e-9).upper
    assert 0.4 < upper <= 0.5
    assert done.changes[0].after <= 0.5


def test_bad_input_is_refused_and_nothing_is_changed(keras):
    conv = keras.layers.Conv2D
    with pytest.raises(TypeError, match="a model or a layer of Keras, got list"):
        layers([])
    with pytest.raises(ValueError, match="must be built"):
        layers(keras.Sequential([conv(2, 3)]))
    empty = keras.Sequential([keras.Input((4,)), keras.layers.ReLU()])
    assert len(layers(empty)) == 0
    with pytest.raises(ValueError, match="must have convolutions or Dense layers"):
        clip_(empty, 1.0)
    model = keras.Sequential(
        [keras.Input(IMAGE), *(conv(3, 3, **zeros("Conv2D"), name=x) for x in "ab")]
    )
    weights = model.get_weights()
    for bad in (0, -1.0, float("nan"), "much", {"*": 0}, {"c*": 1.0}):
        with pytest.raises(ValueError, match="max_norm"):
            project_(model, bad)
    broken = [w.copy() for w in weights]
    broken[2][0, 0, 0, 0] = np.nan
    model.set_weights(broken)
    with pytest.raises(ValueError, match="Layer 'b/kernel': `weight` must be finite"):
        project_(model, 0.1)
    with pytest.raises(ValueError, match="Layer 'b/kernel': `weight` must be finite"):
        layers(model)
    for got, want in zip(model.get_weights(), broken):
        np.testing.assert_array_equal(got, want)
