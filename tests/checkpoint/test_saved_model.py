"""SavedModels: what TensorFlow's own operators make of every basis vector."""

import math
import os
import random
import shutil

import numpy as np
import pytest
from optional import needed
from tensorflow_layers import LAYERS, blocks, kernel_shape

import convspectra as cs
from convspectra._checkpoint import protobuf_wire, read_network, saved_model_graph
from convspectra._checkpoint.protobuf_wire import message
from convspectra._checkpoint.select import Options, select
from convspectra._checkpoint.stored import Refusal
from convspectra._checkpoint.tensor_bundle import read_bundle
from convspectra._cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
INDEX = "variables/variables.index"
DATA = "variables/variables.data-00000-of-00001"


def fixed(x, w, tf):
    return tf.nn.conv2d(x, w, 2, [[0, 0], [1, 0], [1, 2], [0, 0]])


def line(x, w, tf):
    return tf.nn.conv1d(x, w, 2, "SAME")


MORE = {
    "fixed": ((1, 6, 7, 3), (2, 3, 3, 5), fixed, ()),
    "line": ((1, 9, 2), (3, 2, 4), line, ()),
    "blocks": (
        *((1, 9, 8, 2), (2, 2, 2, 6)),
        *(blocks, ((2, 3), ((1, 2), (2, 2)), ((1, 0), (0, 1)))),
    ),
}
ALL = LAYERS | MORE


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a module with all layers, in functions that call each other."""
    tf, rng = needed("tensorflow"), np.random.default_rng(0)

    class Layers(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = [
                tf.Variable(rng.standard_normal(weight).astype("f4"), name="weight")
                for _, weight, _, _ in ALL.values()
            ]
            self.table = tf.Variable(tf.ones((2, 3, 4)))

        @tf.function
        def inner(self, inputs):
            each = zip(inputs, self.weights, ALL.values())
            return [make(x, w, tf, *args) for x, w, (_, _, make, args) in each]

        @tf.function(
            input_signature=[tf.TensorSpec(shape) for shape, *_ in ALL.values()]
        )
        def __call__(self, *inputs):
            found = self.inner(inputs)
            return {f"out_{i}": x for i, x in enumerate(found)}

    path = tmp_path_factory.mktemp("saved") / "model"
    module = Layers()
    tf.saved_model.save(module, str(path))
    return path, [weight.numpy() for weight in module.weights]


def columns_of(name, weight):
    """What TensorFlow makes of the basis vectors, channels first, as columns."""
    tf = needed("tensorflow")
    shape, _, make, args = ALL[name]
    size = math.prod(shape)
    basis = np.eye(size, dtype="f4").reshape(size, *shape[1:])
    results = make(tf.constant(basis), tf.constant(weight), tf, *args).numpy()
    order = np.moveaxis(np.arange(size).reshape(shape[1:]), -1, 0).ravel()
    return np.moveaxis(results, -1, 1)[order].reshape(size, -1).T


def test_layers_are_what_tensorflow_does(saved):
    path, weights = saved
    layers = select(path, Options()).layers
    assert len(layers) == len(ALL)
    by_shape = {layer.kernel.shape: layer for layer in layers}
    assert len(by_shape) == len(ALL)
    for (name, (_, shape, make, _)), weight in zip(ALL.items(), weights):
        wanted = kernel_shape(shape, make)
        wanted = (*wanted[:2], 1, *wanted[2:]) if make is line else wanted
        layer = by_shape[wanted]
        assert layer.unknown == ()
        found = cs.dense_matrix(layer.load().weight, layer.geometry)
        np.testing.assert_allclose(found, columns_of(name, weight), atol=3e-6)


@pytest.mark.parametrize("resource", [True, False])
def test_models_from_before_tensorflow_2(tmp_path, resource):
    tf = needed("tensorflow").compat.v1
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, (None, 9, 8, 2), name="x")
        for i, shape in enumerate([(3, 3, 2, 4), (1, 2, 2, 3)]):
            weight = tf.get_variable(f"w{i}", shape, use_resource=resource)
            y = tf.nn.conv2d(tf.split(x, [5, 4], 1)[i], weight, 2, "SAME")
        session.run(tf.global_variables_initializer())
        values = session.run(tf.global_variables())
        tf.saved_model.simple_save(session, str(tmp_path / "model"), {"x": x}, {"y": y})
    layers = select(tmp_path / "model", Options()).layers
    assert [layer.name for layer in layers] == ["w0", "w1"]
    for layer, weight, height in zip(layers, values, (5, 4)):
        np.testing.assert_array_equal(layer.load().weight, weight.transpose(3, 2, 0, 1))
        stated = (layer.geometry.stride, layer.geometry.padding)
        assert stated == ((2, 2), "same")
        assert layer.geometry.grid in (None, (height, 8))


def frozen_graph(path, rng):
    """A graph with all layers, whose weights are constants, as a file; these weights.

    One more has a weight that is computed, and one a weight that is a single number.
    """
    tf = needed("tensorflow")
    found = [rng.standard_normal(w).astype("f4") for _, w, _, _ in ALL.values()]
    turned = rng.standard_normal((4, 2, 3, 3)).astype("f4")

    @tf.function(input_signature=[tf.TensorSpec(shape) for shape, *_ in ALL.values()])
    def every(*inputs):
        for i, (x, (_, _, make, args)) in enumerate(zip(inputs, ALL.values())):
            weight = tf.constant(found[i], name=f"w{i}")
            make(x, tf.identity(weight) if i % 2 else weight, tf, *args)
        x = tf.ones((1, 5, 5, 2))
        weight = tf.transpose(tf.constant(turned), (2, 3, 1, 0))
        tf.nn.conv2d(x, weight, 1, "SAME", name="turned")
        tf.nn.conv2d(x, tf.constant(1.0, shape=(3, 3, 2, 4)), 1, "SAME", name="flat")

    graph = every.get_concrete_function().graph.as_graph_def(add_shapes=True)
    path.write_bytes(graph.SerializeToString())
    return found


def test_a_frozen_graph_has_the_layers_that_tensorflow_has(tmp_path, rng):
    weights = frozen_graph(tmp_path / "frozen.pb", rng)
    selected = select(tmp_path / "frozen.pb", Options())
    layers = {layer.name: layer for layer in selected.layers}
    for i, (name, weight) in enumerate(zip(ALL, weights)):
        layer = layers.pop(f"w{i}")
        assert layer.unknown == ()
        found = cs.dense_matrix(layer.load().weight, layer.geometry)
        np.testing.assert_allclose(found, columns_of(name, weight), atol=3e-6)
    why = "is Conv2D: its weight is computed by Transpose"
    assert selected.skipped["turned"] == why
    assert not layers
    assert selected.skipped["flat"].startswith("is Conv2D: its weight ")


def test_a_damaged_frozen_graph_is_read_or_refused(tmp_path, rng):
    path = tmp_path / "frozen.pb"
    frozen_graph(path, rng)
    data, read, refused, draw = path.read_bytes(), 0, 0, random.Random(0)
    for _ in range(200):
        new = bytearray(data)
        for _ in range(draw.randint(1, 5)):
            new[draw.randrange(len(new))] = draw.randrange(256)
        is_cut = draw.random() < 0.2
        path.write_bytes(new[: draw.randrange(len(new))] if is_cut else new)
        try:
            for kernel in read_network(path).kernels:
                assert kernel.load().shape == kernel.shape
            read += 1
        except (ValueError, OSError) as error:
            refused += bool(str(error))
    assert read + refused == 200
    assert min(read, refused) > 10


def test_variables_that_no_convolution_reads_are_named(saved):
    skipped = dict(read_network(saved[0]).skipped)
    assert skipped["table"] == "is read by no convolution of the graph"


@pytest.mark.parametrize("alone", [False, True])  # or beside one that is read
def test_layers_that_are_not_read_are_named_with_their_variables(tmp_path, alone):
    tf = needed("tensorflow")

    class Layers(tf.Module):
        def __init__(self):
            super().__init__()
            self.heads = tf.Variable(tf.ones((5, 2, 3)))
            self.conv = tf.Variable(tf.ones((3, 3, 5, 4)))
            self.dilated = tf.Variable(tf.ones((3, 3, 2, 5)))

        @tf.function(input_signature=[tf.TensorSpec((1, 6, 6, 5))])
        def __call__(self, x):
            found = {"heads": tf.einsum("nhwc,cij->nhwij", x, self.heads, name="mix")}
            if alone:
                return found
            options = {"strides": 1, "padding": "SAME", "dilations": 2, "name": "up"}
            found["up"] = tf.nn.conv2d_transpose(
                x, self.dilated, (1, 6, 6, 2), **options
            )
            return found | {"conv": tf.nn.conv2d(x, self.conv, 1, "SAME")}

    tf.saved_model.save(Layers(), str(tmp_path))
    network = read_network(tmp_path)
    skipped = dict(network.skipped)
    (mixing,) = (x for x, why in skipped.items() if why.startswith("is Einsum: this"))
    assert skipped["heads"] == f"is read by {mixing!r}, which is skipped"
    assert "heads" not in {kernel.name for kernel in network.kernels}
    if not alone:
        assert len(network.kernels) == 1
        assert skipped["up"] == "is Conv2DBackpropInput: it is dilated"
        assert skipped["dilated"] == "is read by 'up', which is skipped"


def test_a_report_on_the_file_itself(saved, capsys):
    assert main(["report", str(saved[0] / "saved_model.pb"), "--quick", "--json"]) == 0
    assert capsys.readouterr().out


def test_without_a_graph_there_are_weights(saved, tmp_path):
    path = shutil.copytree(saved[0], tmp_path / "model")
    (path / "saved_model.pb").write_bytes(b"")
    network = read_network(path)
    assert len(network.kernels) == len(ALL)  # the matrix is none, the table is one
    assert not any(kernel.stated for kernel in network.kernels)
    with pytest.raises(ValueError, match="a SavedModel is several files"):
        network.write(tmp_path / "new.pb", {})


@pytest.mark.parametrize("file", [INDEX, DATA])
def test_all_files_must_be_there(saved, tmp_path, capsys, file):
    path = shutil.copytree(saved[0], tmp_path / "model")
    (path / file).unlink()
    assert main(["report", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.parametrize("file", ["saved_model.pb", INDEX, DATA])
def test_damaged_files_are_read_or_refused(saved, tmp_path, file):
    path = shutil.copytree(saved[0], tmp_path / "model")
    data, count = (path / file).read_bytes(), 0
    for seed in range(25):
        rng, bad = random.Random(f"{file} {seed}"), bytearray(data)
        for _ in range(rng.choice([1, 3, 20])):
            bad[rng.randrange(len(bad))] = rng.choice([0, 1, 127, 128, 255])
        end = rng.choice([len(bad)] * 3 + [rng.randrange(len(bad))])
        (path / file).write_bytes(bad[:end])
        try:
            for kernel in read_network(path).kernels:
                assert kernel.load().shape == kernel.shape
        except ValueError as error:
            count += bool(str(error))
        else:
            count += 1
    assert count == 25


def test_functions_that_call_themselves_end(saved, tmp_path):
    from tensorflow.core.protobuf import saved_model_pb2

    path = shutil.copytree(saved[0], tmp_path / "model")
    model = saved_model_pb2.SavedModel.FromString(
        (path / "saved_model.pb").read_bytes()
    )
    changed = 0
    for function in model.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if "f" in node.attr:  # with its variables in another order each time
                node.attr["f"].func.name = function.signature.name
                node.input.insert(0, node.input.pop(-2))
                changed += 1
    assert changed
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    assert len(read_network(path).kernels) == len(ALL)


def test_a_graph_has_a_largest_number_of_nodes(saved, monkeypatch):
    monkeypatch.setattr(saved_model_graph, "MOST_NODES", 50)
    with pytest.raises(Refusal, match="more than 50 nodes"):
        read_network(saved[0])


def test_a_message_has_a_largest_number_of_fields(monkeypatch):
    monkeypatch.setattr(protobuf_wire, "MOST_FIELDS", 10)
    with pytest.raises(ValueError, match="more than 10 fields"):
        message(memoryview(b"\x08\x01" * 11))


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b", b"\x08" + b"\xff" * 20]
)
def test_what_is_no_message_is_refused(data):
    with pytest.raises(ValueError, match=r"does not end|of kind"):
        message(memoryview(data))


def test_a_table_that_is_none_is_refused(tmp_path):
    (tmp_path / "v.index").write_bytes(b"\0" * 100)
    with pytest.raises(Refusal, match="must be a whole table"):
        read_bundle(tmp_path / "v")
    with (tmp_path / "v.index").open("wb") as stream:
        stream.truncate(2**28)
    with pytest.raises(Refusal, match="at most 134217728 bytes"):
        read_bundle(tmp_path / "v")
