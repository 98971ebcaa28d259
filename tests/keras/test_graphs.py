"""What `layers` reads from a model's graph, which is the same on all backends."""

import json

import numpy as np
import pytest
from keras_layers import layer_of
from optional import needed

import convspectra as cs
from convspectra._cli.main import main

needed("keras")
from convspectra.keras import layers  # noqa: E402


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
        for key in ours:  # a report takes its few values from LAPACK
            same = theirs[key]
            is_number = isinstance(same, float)
            same = pytest.approx(same, rel=1e-5) if is_number else same
            assert ours[key] == same, key
