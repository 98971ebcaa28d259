"""TensorFlow Lite models: what its own interpreter makes of every basis vector."""

import math
import os
import random
import struct

import numpy as np
import pytest
from optional import needed
from tensorflow_layers import LAYERS, kernel_shape

import convspectra as cs
from convspectra._checkpoint import read_network
from convspectra._checkpoint.records import names_layer
from convspectra._checkpoint.select import Options, select
from convspectra._checkpoint.stored import Refusal
from convspectra._checkpoint.tflite_file import read_tflite
from convspectra._checkpoint.tflite_geometry import LAYOUTS, UNREAD
from convspectra._cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def converted(tf, model, shapes, *, optimize=False, types=()):
    """The bytes of a model on inputs of these shapes."""
    specs = [
        tf.TensorSpec(shape, tf.float32, name=f"in_{i}")
        for i, shape in enumerate(shapes)
    ]
    function = tf.function(model, input_signature=specs).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], None)
    converter.optimizations = [tf.lite.Optimize.DEFAULT] if optimize else []
    converter.target_spec.supported_types = list(types)
    return converter.convert()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a model of all layers, side by side, as it is and in half bytes."""
    tf, rng = needed("tensorflow"), np.random.default_rng(0)
    weights = [rng.standard_normal(x[1]).astype("f4") for x in LAYERS.values()]

    def model(*inputs):
        each = zip(inputs, weights, LAYERS.values())
        return [make(x, tf.constant(w), tf, *args) for x, w, (_, _, make, args) in each]

    folder, shapes = tmp_path_factory.mktemp("tflite"), [x[0] for x in LAYERS.values()]
    for kind, types in (("plain", []), ("half", [tf.float16])):
        data = converted(tf, model, shapes, optimize=bool(types), types=types)
        (folder / f"{kind}.tflite").write_bytes(data)
    return folder


def interpreter_of(path):
    interpreter = needed("tensorflow").lite.Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    return interpreter


def by_number(details, prefix):
    """Inputs or outputs in the order of `LAYERS`."""

    def number(name):
        return int(name.partition(":")[0].removeprefix(prefix).strip("_") or 0)

    return [x["index"] for x in sorted(details, key=lambda x: number(x["name"]))]


def results_of(path):
    """What each layer gives for its basis vectors, one after another."""
    interpreter, shapes = interpreter_of(path), [x[0] for x in LAYERS.values()]
    inputs = by_number(interpreter.get_input_details(), "in_")
    outputs = by_number(interpreter.get_output_details(), "Identity")
    found = [[] for _ in outputs]
    for column in range(max(map(math.prod, shapes))):
        for index, shape in zip(inputs, shapes):
            basis = np.zeros(math.prod(shape), "f4")
            basis[column % basis.size] = 1
            interpreter.set_tensor(index, basis.reshape(shape))
        interpreter.invoke()
        for results, index in zip(found, outputs):
            results.append(interpreter.get_tensor(index)[0])
    return dict(zip(LAYERS, found))


@pytest.mark.parametrize("kind", ["plain", "half"])
def test_layers_are_what_the_interpreter_does(saved, kind):
    path = saved / f"{kind}.tflite"
    layers = {x.kernel.shape: x for x in select(path, Options()).layers}
    assert len(layers) == len(LAYERS)  # the shapes differ
    results = results_of(path)
    for name, (shape, weight, make, _) in LAYERS.items():
        layer = layers[kernel_shape(weight, make)]
        assert layer.unknown == ()
        assert layer.kernel.dtype == ("float32" if kind == "plain" else "float16")
        found = cs.dense_matrix(layer.load().weight.astype("f4"), layer.geometry)
        # The interpreter has channels last, in the basis and in the results.
        basis = np.moveaxis(np.arange(math.prod(shape)).reshape(shape[1:]), -1, 0)
        columns = [np.moveaxis(results[name][i], -1, 0).ravel() for i in basis.ravel()]
        np.testing.assert_allclose(found, np.transpose(columns), atol=3e-6)


def test_integers_are_scaled_back_as_the_interpreter_says(tmp_path):
    tf, rng = needed("tensorflow"), np.random.default_rng(0)
    weight = rng.standard_normal((3, 3, 8, 16)).astype("f4") * np.arange(1, 17)
    matrix = rng.standard_normal((16, 80)).astype("f4")

    def model(x):
        x = tf.nn.conv2d(x, tf.constant(weight, tf.float32), 1, "SAME")
        return tf.matmul(tf.reduce_mean(x, (1, 2)), tf.constant(matrix))

    path = tmp_path / "net.tflite"
    path.write_bytes(converted(tf, model, [(1, 6, 6, 8)], optimize=True))
    conv, line = read_tflite(path).kernels
    assert {conv.not_writable_because, line.not_writable_because} == {"is quantized"}
    interpreter = interpreter_of(path)
    details = {
        tuple(x["shape"]): x
        for x in interpreter.get_tensor_details()
        if x["dtype"] == np.int8
    }
    for kernel, shape in ((conv, (16, 3, 3, 8)), (line, (80, 16))):
        stated = details[shape]["quantization_parameters"]
        steps = interpreter.get_tensor(details[shape]["index"]).astype("f8")
        assert stated["quantized_dimension"] == 0
        scales = stated["scales"].reshape(-1, *[1] * (len(shape) - 1))
        want = np.moveaxis(steps * scales, -1, 1)
        found = kernel.load()
        assert found.dtype == "float32"
        np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-7)
    step = np.abs(weight).max((0, 1, 2)) / 127
    error = np.abs(np.transpose(weight, (3, 2, 0, 1)) - conv.load()).max((1, 2, 3))
    assert (error <= 0.51 * step).all()


def schema_of_tensorflow():
    return needed("tensorflow.lite.python.schema_py_generated")


def test_every_layer_of_the_schema_is_read_or_named():
    numbers = vars(schema_of_tensorflow().BuiltinOperator)
    known = {axes.kind: code for code, axes in LAYOUTS.items()}
    known |= {kind: code for code, kind in UNREAD.items()}
    assert known == {kind: numbers[kind] for kind in known}
    assert {kind for kind in numbers if names_layer(kind)} <= known.keys()


@pytest.mark.parametrize(
    ("code", "custom", "kind"),
    [
        ("CUSTOM", b"Convolution2DTransposeBias", "Convolution2DTransposeBias"),
        ("CUSTOM", b"FlexEinsum", "FlexEinsum"),
        ("STABLEHLO_CONVOLUTION", None, "STABLEHLO_CONVOLUTION"),
    ],
)
def test_layers_that_are_not_read_are_named(tmp_path, code, custom, kind):
    tf, schema = needed("tensorflow"), schema_of_tensorflow()
    flatbuffers = needed("flatbuffers")

    def model(x):
        return tf.nn.relu(tf.nn.conv2d(x, tf.ones((3, 3, 2, 2)), 1, "SAME") - x)

    data = converted(tf, model, [(1, 6, 6, 2)])
    net = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    number = getattr(schema.BuiltinOperator, code)
    for each in net.operatorCodes:
        if each.builtinCode != schema.BuiltinOperator.CONV_2D:
            each.builtinCode, each.deprecatedBuiltinCode = number, min(number, 127)
            each.customCode = custom
    builder = flatbuffers.Builder()
    builder.Finish(net.Pack(builder), b"TFL3")
    (tmp_path / "net.tflite").write_bytes(builder.Output())
    network = read_tflite(tmp_path / "net.tflite")
    assert len(network.kernels) == 1
    ((_, why),) = network.skipped
    assert why == f"is of type {kind}: this operator is not read"


def test_a_wrong_suffix_does_not_matter(saved, tmp_path):
    (tmp_path / "net.bin").write_bytes((saved / "plain.tflite").read_bytes())
    assert len(read_network(tmp_path / "net.bin").kernels) == len(LAYERS)


def test_a_copy_does_what_it_should(saved, tmp_path):
    network, target = read_network(saved / "plain.tflite"), tmp_path / "new.tflite"
    network.write(target, {k.name: 2 * k.load() for k in network.kernels})
    old, new = results_of(saved / "plain.tflite"), results_of(target)
    for name in LAYERS:
        np.testing.assert_allclose(new[name], 2 * np.array(old[name]), atol=1e-6)


@pytest.mark.parametrize("place", [0, 4, 2**10])
def test_offsets_lead_inside_the_file(saved, tmp_path, place):
    data = bytearray((saved / "plain.tflite").read_bytes())
    data[0:4] = struct.pack("<I", 2**32 - 1 - place)
    path = tmp_path / "bad.tflite"
    path.write_bytes(data)
    with pytest.raises(Refusal, match="All offsets must lead inside the file"):
        read_tflite(path)


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0TFL3", b"\x08\0\0\0TFL3" + b"\0" * 40])
def test_what_is_no_model_is_refused(tmp_path, capsys, data):
    (tmp_path / "bad.tflite").write_bytes(data)
    assert main(["report", str(tmp_path / "bad.tflite"), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


def test_damaged_models_are_read_or_refused(saved, tmp_path):
    data, path = (saved / "plain.tflite").read_bytes(), tmp_path / "bad.tflite"
    ends = {True: 0, False: 0}
    for seed in range(300):
        rng, bad = random.Random(seed), bytearray(data)
        for _ in range(rng.choice([1, 3, 20])):
            bad[rng.randrange(len(bad))] = rng.choice([0, 1, 127, 255])
        path.write_bytes(bad[: rng.choice([len(bad)] * 3 + [rng.randrange(len(bad))])])
        try:
            for kernel in read_tflite(path).kernels:
                assert kernel.load().shape == kernel.shape
        except ValueError as error:
            ends[False] += bool(str(error))
        else:
            ends[True] += 1
    assert min(ends.values()) > 10
    assert sum(ends.values()) == 300
