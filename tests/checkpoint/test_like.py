"""Weights alone, with another file of the same network for their geometry."""

import json

import numpy as np
import pytest
import safetensors.numpy
from onnx_models import make_node, model_of, stored, value

from convspectra._checkpoint.select import Options, select

# Two kernels of one shape with different strides, and a depthwise one.
NODES = {
    "a.weight": {"strides": [2], "pads": [1, 1]},
    "b.weight": {"strides": [1], "pads": [1, 1]},
    "c.weight": {"group": 4, "dilations": [2]},
}
SHAPES = {"a.weight": (4, 4, 3), "b.weight": (4, 4, 3), "c.weight": (4, 1, 3)}


@pytest.fixture
def arrays(rng):
    return {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}


@pytest.fixture
def graph(tmp_path, arrays):
    """The network as a chain of convolutions in an .onnx file."""
    nodes = [
        make_node("Conv", [f"x{i}", name], [f"x{i + 1}"], **attributes)
        for i, (name, attributes) in enumerate(NODES.items())
    ]
    tensors = [stored(name, x) for name, x in arrays.items()]
    model = model_of(nodes, tensors, [value("x0", [1, 4, 20])])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def layers(tmp_path, arrays, like):
    path = tmp_path / "weights.safetensors"
    safetensors.numpy.save_file(arrays, path)
    found = select(path, Options(like=like)).layers
    return {layer.name: layer for layer in found}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_kernel_has_the_geometry_of_its_namesake(tmp_path, arrays, graph, prefix):
    wanted = {x.name: x.geometry for x in select(graph, Options()).layers}
    renamed = {prefix + name: array for name, array in arrays.items()}
    found = layers(tmp_path, renamed, graph)
    assert {f"{prefix}{n}": g for n, g in wanted.items()} == {
        name: layer.geometry for name, layer in found.items()
    }
    assert not any(layer.unknown for layer in found.values())
    assert [wanted[name].grid for name in NODES] == [(20,), (10,), (10,)]


def test_without_names_only_what_all_of_a_shape_agree_on_is_known(
    tmp_path, arrays, graph
):
    renamed = {f"{i}": array for i, array in enumerate(arrays.values())}
    one, other, depthwise = layers(tmp_path, renamed, graph).values()
    for layer in (one, other):  # of two strides, on two grids
        assert layer.unknown == ("grid", "stride")
        assert layer.geometry.padding == ((1, 1),)
    assert depthwise.unknown == ()
    assert (depthwise.geometry.groups, depthwise.geometry.dilation) == (4, (2,))


def test_a_kernel_of_another_shape_stays_unknown(tmp_path, rng, graph):
    other = {"a.weight": rng.standard_normal((5, 4, 3))}
    (layer,) = layers(tmp_path, other, graph).values()
    assert "groups" in layer.unknown


def keras_model(**changes):
    config = {"name": "a", "filters": 4, "kernel_size": [3], "strides": [2]}
    config |= {"padding": "valid", "dilation_rate": [1], "groups": 2} | changes
    layer = {"class_name": "Conv1D", "config": config}
    return {"class_name": "Sequential", "config": {"layers": [layer]}}


def test_the_configuration_of_a_keras_model(tmp_path, rng):
    config = tmp_path / "model.json"
    weights = {"a/kernel": rng.standard_normal((4, 3, 3))}
    config.write_text(json.dumps(keras_model()))
    (layer,) = layers(tmp_path, weights, config).values()
    assert layer.unknown == ("grid",)
    assert (layer.geometry.groups, layer.geometry.stride) == (2, (2,))
    config.write_text(json.dumps(keras_model(filters=5)))
    (layer,) = layers(tmp_path, weights, config).values()
    assert "stride" in layer.unknown


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"config": ' * 9999, '{"config": 3}']
)
def test_what_is_no_configuration_is_refused(tmp_path, text):
    config = tmp_path / "model.json"
    config.write_text(text)
    weights = {"a/kernel": np.ones((4, 3, 3))}
    with pytest.raises(ValueError, match="whole configuration of a"):
        layers(tmp_path, weights, config)
