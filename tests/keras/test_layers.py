"""Layers of Keras models, against what Keras itself computes with them."""

import json

import numpy as np
import pytest
from keras_layers import CASES, IMAGE, layer_of, matrix_of
from optional import needed

import convspectra as cs
from convspectra._cli.main import main

needed("keras")
from convspectra.keras import clip_, layers, project_  # noqa: E402

FIRST = "channels_first"


# Of these layers channels come first on all backends, of the others on TensorFlow.
FEW = ["same-strided", "grouped", "causal", "up-same-odd", "depthwise", "separable"]


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


@pytest.mark.parametrize("data_format", ["channels_last", FIRST])
@pytest.mark.parametrize("name", CASES)
def test_kernels_and_geometries_make_the_matrices_of_their_layers(
    name, data_format, keras
):
    channels_first = data_format == FIRST and name != "dense"
    if channels_first and keras.backend.backend() != "tensorflow" and name not in FEW:
        return
    model = model_of(keras, name, data_format if name != "dense" else None)
    found = layers(model)
    assert len(found) == 1 + name.startswith("separable")
    _, shape, _ = CASES[name]
    want = matrix_of(model.layers[0], shape, channels_first=channels_first)
    np.testing.assert_allclose(product(found), want, atol=5e-6)
    if len(found) == 1:
        norm = cs.operator_norm(found[0].weight, found[0].geometry)
        exact = np.linalg.norm(want.astype("float64"), 2)
        assert norm.lower <= exact * (1 + 1e-6)
        assert norm.upper >= exact * (1 - 1e-6)
        assert norm.gap < 1e-3


class Block:
    """Makes a layer that consists of others."""

    def __new__(cls, keras):
        class Own(keras.layers.Layer):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.inner = keras.layers.Conv2D(4, 3, padding="same", name="conv")
                self.other = keras.layers.Conv2D(4, 1, name="conv")
                self.norm = keras.layers.BatchNormalization()

            def build(self, shape):
                self.inner.build(shape)
                self.other.build(shape)
                self.norm.build(shape)

            def call(self, x):
                return self.norm(self.inner(x)) + self.other(x)

        return Own(name="block")


@pytest.fixture(scope="module")
def network(keras):
    """A shared layer on two sizes, a model inside, one with layers of its own."""
    one, up = keras.layers.Conv2D, keras.layers.Conv2DTranspose
    start = keras.Input((8, 8, 4))
    shared = one(4, 3, padding="same", name="shared")
    x = keras.layers.BatchNormalization(name="norm")(shared(start))
    x = shared(keras.layers.MaxPooling2D(2)(x))
    x = Block(keras)(x)
    inside = keras.Sequential(
        [keras.Input((None, None, 4)), one(3, 1, name="point"), up(2, 2, name="up")],
        name="inside",
    )
    x = keras.layers.Flatten()(inside(keras.ops.relu(x)))
    x = keras.layers.Dense(3, name="head")(x)
    other = keras.Model(start, x)
    keras.Model(start, shared(start))  # another model with this layer: no use of ours
    return other


def test_grids_are_those_that_each_use_sees(network):
    found = layers(network)
    assert {one.name: one.geometry.grid for one in found} == {
        "shared/kernel@8x8": (8, 8),
        "shared/kernel@4x4": (4, 4),
        "block/conv/kernel": (4, 4),
        "block/conv#2/kernel": (4, 4),
        "inside/point/kernel": (4, 4),
        "inside/up/kernel": (4, 4),
        "head/kernel": (1,),
    }
    assert found.skipped == {}
    assert (len(found[:2]), len(found)) == (2, 7)


def test_an_unknown_size_is_every_size(keras):
    start = keras.Input((None, 8, 2))
    model = keras.Sequential([start, keras.layers.Conv2D(2, 3, name="conv")])
    (one,) = layers(model)
    assert one.geometry.grid is None
    assert cs.operator_norm(one.weight, one.geometry).method == "supremum"


def test_a_batch_norm_is_folded_with_its_moving_statistics(keras):
    shape, conv = (5, 6, 4), keras.layers.Conv2D
    norms = [keras.layers.BatchNormalization(name=f"norm{i}") for i in range(4)]
    start = keras.Input(shape)
    x = norms[0](conv(6, 3, name="a")(start))
    x = norms[1](keras.layers.SeparableConv2D(5, 2, name="b")(x))
    x = norms[2](conv(4, 1, name="c", activation="relu")(x))  # not linear
    up = keras.layers.Conv2DTranspose(4, 2, strides=2, padding="same", name="d")
    model = keras.Model(start, norms[3](up(x)))
    rng = np.random.default_rng(0)
    for norm in norms:
        norm.set_weights([rng.uniform(0.5, 2, w.shape) for w in norm.get_weights()])
    found = layers(model, fold_batch_norm=True)
    assert [one.name for one in found] == [
        "a/kernel+norm0",
        "b/depthwise_kernel",
        "b/pointwise_kernel+norm1",
        "c/kernel",
        "d/kernel+norm3",
    ]

    def both(layer, norm):
        return lambda x: norm(layer(x), training=False)

    by_name = {one.name[0]: [] for one in found}
    for one in found:
        by_name[one.name[0]].append(one)
    for name, norm, seen in [
        ("a", norms[0], shape),
        ("b", norms[1], (3, 4, 6)),
        ("d", norms[3], (2, 3, 4)),
    ]:
        want = matrix_of(both(model.get_layer(name), norm), seen)
        np.testing.assert_allclose(product(by_name[name]), want, atol=1e-5)


def test_a_model_without_a_graph_has_the_sizes_it_was_built_with(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = keras.layers.Conv2D(3, 3, strides=2, name="conv")
            self.tail = keras.Sequential([keras.layers.Conv2D(2, 2, name="last")])

        def call(self, x):
            return self.tail(self.conv(x))

    model = Net()
    with pytest.raises(ValueError, match=r"must be built, .* `model.build"):
        layers(model)
    model(np.zeros((1, 9, 9, 2), "float32"))
    sizes = {one.name: one.geometry.grid for one in layers(model)}
    tail = model.tail.name
    assert sizes == {"conv/kernel": (9, 9), f"{tail}/last/kernel": (4, 4)}


def test_a_single_layer_will_do(keras):
    layer = keras.layers.Conv1D(2, 3, name="one")
    layer.build((None, 7, 2))
    (found,) = layers(layer)
    assert (found.name, found.geometry.grid) == ("one/kernel", (7,))


def test_what_is_not_known_is_named_with_the_reason(keras):
    class Mine(keras.layers.Conv2D):
        """Of another meaning, perhaps."""

    start = keras.Input((3, 6, 6, 2))
    x = keras.layers.ConvLSTM2D(2, 3, name="memory")(start)
    x = Mine(2, 1, name="mine")(x)
    y = keras.layers.TimeDistributed(keras.layers.Conv2D(2, 3, name="each"))(start)
    heads = keras.layers.Reshape((16, 2))(x)
    heads = keras.layers.MultiHeadAttention(2, 3, name="attention")(heads, heads)
    model = keras.Model(start, [heads, y])
    found = layers(model)
    assert [one.geometry.grid for one in found] == [(6, 6)]  # that of each time
    assert found[0].name.endswith("/each/kernel")
    assert any(name.startswith("memory") for name in found.skipped)
    assert found.skipped["mine"] == "a Mine is not a layer whose geometry is known"
    assert any(name.startswith("attention/") for name in found.skipped)


def test_the_file_of_a_model_gives_the_same_report(
    keras, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    start = keras.Input((8, 9, 2))
    x = keras.layers.Conv2D(4, 3, padding="same", strides=2, name="a")(start)
    inside = keras.Sequential([keras.Input((4, 5, 4)), layer_of(keras, "separable")])
    x = layer_of(keras, "up-same-odd")(inside(x))
    x = keras.layers.Dense(3, name="head")(keras.layers.Flatten()(x))
    model = keras.Model(start, x)
    model.save("net.keras")
    want = json.loads(json.dumps(cs.spectra(layers(model)).rows()))
    assert main(["report", "net.keras", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)["layers"]
    assert len(got) == len(want) == 5
    for ours, theirs in zip(want, got):
        del ours["seconds"]
        assert ours["grid"]
        assert ours == {key: theirs[key] for key in ours}


def test_an_int8_layer_is_named(keras):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="head")])
    model.get_layer("head").quantize("int8")
    found = layers(model)
    assert len(found) == 0
    assert found.skipped["head/kernel"].startswith("its numbers are int8")
    with pytest.raises(ValueError, match="must have convolutions or Dense layers"):
        clip_(model, 1.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions_stay_what_they_are(dtype, keras):
    if dtype == "float64" and keras.backend.backend() == "jax":
        return  # which has none by itself
    layer = keras.layers.Conv2D(3, 3, dtype=dtype, name="conv")
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
        [keras.Input(IMAGE), conv(3, 3, name="a"), conv(3, 3, name="b")]
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
