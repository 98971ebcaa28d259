"""Sizes followed through models as Keras 2 saves them, against Keras's own."""

import json

import pytest
from real_data import real_data

from convspectra._checkpoint.keras_config import layers_of
from convspectra._checkpoint.keras_file import read_keras


def as_keras_2(model):
    """The configuration of a model without what Keras 2 leaves out."""
    found = json.loads(model.to_json())
    for layer in found["config"]["layers"]:
        layer.pop("build_config", None)
        calls = layer.get("inbound_nodes", [])
        if "inbound_nodes" in layer:
            layer["inbound_nodes"] = [called_on(call["args"][0]) for call in calls]
        config = layer["config"]
        if "batch_shape" in config:
            config["batch_input_shape"] = config.pop("batch_shape")
    return found


def called_on(tensors):
    tensors = tensors if isinstance(tensors, list) else [tensors]
    return [[*tensor["config"]["keras_history"], {}] for tensor in tensors]


def branching(keras):
    """A bit of everything, with sizes that tell one rounding from another."""
    layers = keras.layers
    start = keras.Input((23, 18, 3))
    x = layers.Conv2D(4, 3, strides=(2, 3), padding="same")(start)
    x = layers.BatchNormalization()(layers.ReLU()(x))
    y = layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same")(x)
    y = layers.SeparableConv2D(4, 2, padding="same")(y)
    x = layers.Add()([x, y])
    x = layers.Concatenate()([x, layers.Dropout(0.5)(y)])
    x = layers.UpSampling2D((3, 2))(x)
    x = layers.ZeroPadding2D(((1, 0), (2, 3)))(x)
    x = layers.Conv2D(4, 3, dilation_rate=2)(x)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = layers.AveragePooling2D((3, 2), strides=2)(x)
    x = layers.Cropping2D(1)(x)
    x = layers.Conv2DTranspose(2, 3, strides=2, padding="same")(x)
    x = layers.Conv2DTranspose(2, 2, strides=3)(x)
    return keras.Model(start, layers.Conv2D(2, 1)(x))


def chain(keras):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((29, 2)),
            layers.Conv1D(3, 4, padding="causal"),
            layers.ZeroPadding1D((1, 2)),
            layers.MaxPooling1D(3),
            layers.UpSampling1D(2),
            layers.Cropping1D((2, 1)),
            layers.Conv1D(3, 4, strides=2),
            layers.Conv1D(2, 1),
        ]
    )


@pytest.mark.parametrize("make", [branching, chain])
def test_sizes_are_those_that_keras_sees(keras, make):
    model = make(keras)
    followed = {x.names[-1]: x.input_shape for x in layers_of(as_keras_2(model))}
    for layer in model.layers:
        if not isinstance(layer, keras.layers.InputLayer):
            first = layer.input[0] if isinstance(layer.input, list) else layer.input
            assert followed[layer.name] == list(first.shape), layer.name


def conv(name, sources=None, **config):
    """A convolution as in a configuration, called on these layers."""
    base = {"name": name, "kernel_size": [3], "filters": 2, "padding": "same"}
    layer = {"class_name": "Conv1D", "config": base | config}
    nodes = {"inbound_nodes": [[[s, 0, 0, {}] for s in call] for call in sources or ()]}
    return layer if sources is None else layer | nodes


def followed_in(*layers):
    found = layers_of({"config": {"layers": list(layers)}})
    return {layer.names[-1]: layer.input_shape for layer in found}


def test_what_does_not_follow_is_not_known():
    start = conv("start", (), batch_input_shape=[None, 9, 1])
    odd = {"class_name": "Lambda", "config": {"name": "odd"}}
    odd["inbound_nodes"] = [[["start", 0, 0, {}]]]
    found = followed_in(
        start,
        conv("next", [["start"]], padding="valid"),
        odd,
        conv("after odd", [["odd"]]),
        conv("twice", [["start"], ["next"]]),
        conv("unnamed", [["nobody"]]),
        conv("itself", [["itself"]]),
        conv("bad", [["start"]], kernel_size="x"),
        conv("after bad", [["bad"]]),
        conv("still", [["start"]], strides=[0]),
        conv("after still", [["still"]]),
        conv("huge", [["start"]], filters="x" * 9),
        conv("after huge", [["huge"]]),
    )
    known = {name: shape for name, shape in found.items() if shape}
    nine = [None, 9, 2]
    assert known == {
        "start": [None, 9, 1],
        "next": nine,
        "odd": nine,
        "bad": nine,
        "still": nine,
        "huge": nine,
    }
    assert followed_in(conv("a"), conv("b")) == {"a": None, "b": None}


def test_channels_may_come_first():
    first = {"data_format": "channels_first"}
    start = conv("a", (), batch_input_shape=[None, 1, 9], strides=[2], **first)
    assert followed_in(start, conv("b", [["a"]]))["b"] == [None, 2, 5]


@pytest.mark.parametrize(
    ("name", "grids"),
    [
        ("mlperf_tiny_resnet8_cifar10.h5", [32, 32, 32, 32, 16, 32, 16, 8, 16]),
        (
            "fer_mini_xception.hdf5",
            [64, 62, *[60] * 5, *[30] * 5, *[15] * 5, *[8] * 5, 4],
        ),
    ],
)
def test_real_networks_have_all_their_sizes(name, grids):
    kernels = [x for x in read_keras(real_data(name)).kernels if not x.linear]
    assert [kernel.stated["grid"] for kernel in kernels] == [(n, n) for n in grids]
