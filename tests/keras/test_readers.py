"""Which BatchNorms read the output of a layer, and where nobody knows it."""

import numpy as np
import pytest
from keras_layers import drawn, matrices_of, matrix_of
from optional import needed

import convspectra as cs

needed("keras")
from convspectra.keras import SpectralClip, layers  # noqa: E402

BOUND = 0.5
SHAPE = (4, 5, 2)
SLACK = 1 + 1e-5  # for the forward pass in single precision


class Parts:
    """A layer, and BatchNorms with other gains."""

    def __init__(self, keras):
        self.keras, self.start = keras, keras.Input(SHAPE)
        options = {"padding": "same", "kernel_initializer": drawn}
        self.c = keras.layers.Conv2D(3, 3, **options, name="c")
        self.a, self.b = self.norm("a", 10.0), self.norm("b", 0.1)
        self.rows = self.norm("rows", 0.1, axis=1)

    def norm(self, name, gain, **options):
        start = self.keras.initializers.Constant(gain)
        kind = self.keras.layers.BatchNormalization
        return kind(gamma_initializer=start, name=name, **options)

    def model(self, *outputs, name="model"):
        return self.keras.Model(self.start, list(outputs), name=name)

    def matrices(self):
        """Of the layer with each BatchNorm, and by itself."""
        views = {
            "c/kernel+a": lambda x: self.a(self.c(x), training=False),
            "c/kernel+b": lambda x: self.b(self.c(x), training=False),
            "c/kernel": self.c,
        }
        return matrices_of({name: (view, SHAPE) for name, view in views.items()})


def both(parts):
    y = parts.c(parts.start)
    return parts.model(parts.keras.layers.Add()([parts.a(y), parts.b(y)]))


def beside(parts):
    y = parts.c(parts.start)
    return parts.model(parts.b(y) + y)


def by_name(parts):
    return parts.model(parts.b(inputs=parts.c(inputs=parts.start)))


def returned(parts):
    y = parts.c(parts.start)
    return parts.model(parts.b(y), y)


def by_another_axis(parts):
    y = parts.c(parts.start)
    return parts.model(parts.b(y), parts.rows(y))


def in_one_of_two_calls(parts):
    return parts.model(parts.a(parts.c(parts.start)), parts.c(parts.start))


def outside_of_an_inner_model(parts):
    y = parts.c(parts.start)
    normed, features = parts.model(parts.b(y), y, name="inner")(parts.start)
    return parts.model(normed, parts.a(features))


READ = {
    both: ["c/kernel+a", "c/kernel+b"],
    beside: ["c/kernel+b", "c/kernel"],
    by_name: ["c/kernel+b"],
    returned: ["c/kernel+b", "c/kernel"],
    by_another_axis: ["c/kernel+b", "c/kernel"],
    in_one_of_two_calls: ["c/kernel+a", "c/kernel"],
    outside_of_an_inner_model: ["c/kernel+b", "c/kernel+a"],
}


@pytest.mark.parametrize("read", READ, ids=lambda read: read.__name__)
def test_a_layer_is_listed_with_each_of_its_readers(read, keras):
    parts = Parts(keras)
    found = layers(read(parts), fold_batch_norm=True)
    names = [one.name.removeprefix("inner/") for one in found]
    assert sorted(names) == sorted(READ[read])
    matrices = parts.matrices()
    for name, one in zip(names, found):
        matrix = cs.dense_matrix(one.weight, one.geometry)
        np.testing.assert_allclose(matrix, matrices[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["project", "scale"])
def test_the_bound_holds_for_each_of_them(method, keras):
    parts = Parts(keras)
    clip = SpectralClip(BOUND, method=method, fold_batch_norm=True)
    clip.set_model(both(parts))
    (change,) = clip.apply().changes
    matrices = parts.matrices()
    found = max(np.linalg.norm(matrices[f"c/kernel+{x}"], 2) for x in "ab")
    assert 0.9 * BOUND < found <= SLACK * change.after <= SLACK * BOUND


def test_sizes_are_named_where_there_are_several(keras):
    parts = Parts(keras)
    conv = parts.keras.layers.Conv2D(2, 2, kernel_initializer=drawn, name="conv")
    y = conv(parts.start)
    model = parts.model(parts.a(y), parts.b(y), conv(y))
    assert {one.name for one in layers(model, fold_batch_norm=True)} == {
        "conv/kernel+a@4x5",
        "conv/kernel+b@4x5",
        "conv/kernel@4x5",
        "conv/kernel@3x4",
    }


def hiding(keras, base):
    """A model or a layer of a user's own, with a BatchNorm after a convolution."""

    class Own(base):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            parts = Parts(keras)
            self.c, self.a = parts.c, parts.a

        def build(self, shape):
            self.c.build(shape)
            self.a.build(self.c.compute_output_shape(shape))
            self.built = True

        def call(self, x, training=None):
            return self.a(self.c(x), training=training)

        def compute_output_shape(self, shape):
            return self.c.compute_output_shape(shape)

    return Own(name="own")


def test_a_batch_norm_in_no_graph_is_named_and_no_bound_is_claimed(keras):
    model = hiding(keras, keras.Model)
    model.build((None, *SHAPE))
    layer, start = hiding(keras, keras.layers.Layer), keras.Input(SHAPE)
    for one, prefix in ((model, ""), (keras.Model(start, layer(start)), "own/")):
        norm = matrix_of(lambda x, one=one: one(x, training=False), SHAPE)
        assert np.linalg.norm(norm, 2) > 10 * BOUND
        assert layers(one).skipped == {}
        found = layers(one, fold_batch_norm=True)
        assert [each.name for each in found] == [f"{prefix}c/kernel"]
        why = "it is in no graph of layers, which would say what comes before it"
        assert found.skipped == {f"{prefix}a": why}
        clip = SpectralClip(BOUND, method="scale", fold_batch_norm=True)
        clip.set_model(one)
        before = one.get_weights()
        with pytest.raises(ValueError, match=rf"but it is not\. {prefix}a: {why}\. Ma"):
            clip.apply()
        for got, want in zip(one.get_weights(), before):
            np.testing.assert_array_equal(got, want)


def test_a_batch_norm_after_a_wrapped_layer_is_named(keras):
    parts = Parts(keras)
    wrapped = keras.layers.SpectralNormalization(parts.c, name="wrapped")
    model = parts.model(parts.a(wrapped(parts.start)))
    found = layers(model)
    assert ([one.name for one in found], found.skipped) == (["wrapped/c/kernel"], {})
    matrix = cs.dense_matrix(found[0].weight, found[0].geometry)
    shown = matrix_of(lambda x: wrapped(x, training=False), SHAPE)
    np.testing.assert_allclose(matrix, shown, rtol=1e-5, atol=1e-5)
    folded = layers(model, fold_batch_norm=True)
    assert [one.name for one in folded] == ["wrapped/c/kernel"]
    assert list(folded.skipped) == ["a"]
    assert "after a layer that consists of others" in folded.skipped["a"]


def test_a_pass_needs_a_model():
    with pytest.raises(ValueError, match=r"must have a model before `apply`, .* Pass"):
        SpectralClip(BOUND).apply()
