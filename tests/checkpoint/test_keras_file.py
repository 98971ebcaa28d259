"""Keras's files: what Keras itself computes with them, and what is refused."""

import io
import itertools
import json
import signal
import zipfile

import numpy as np
import pytest
from keras_layers import CASES, FLAT, IMAGE, layer_of, matrix_of
from optional import needed
from real_data import real_data

import convspectra as cs
from convspectra._checkpoint import hdf5_store, hdf5_worker
from convspectra._checkpoint.keras_config import _snake_case, from_layer, to_layer
from convspectra._checkpoint.keras_file import read_keras
from convspectra._checkpoint.sandbox import Limits
from convspectra._checkpoint.stored import Refusal

h5py = needed("h5py")
# Of Keras with TensorFlow, where the two meet NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


@pytest.fixture(scope="module")
def model(keras):
    """Every case as a branch of one model, and some in models inside it."""
    layers, inputs, outputs = keras.layers, {}, []
    for name, (_, shape, _) in CASES.items():
        start = inputs.setdefault(shape, keras.Input(shape))
        outputs.append(layer_of(keras, name)(start))
    inner = keras.Input((5, 6, 3))
    deep = keras.Sequential([layers.Conv2D(2, 2), layers.Conv2D(3, 1)], name="deep")
    block = keras.Model(inner, deep(layers.Conv2D(4, 3, name="same")(inner)), name="in")
    start = inputs[IMAGE]
    outputs.append(block(layers.Conv2D(3, 1, strides=1)(start)))
    outputs.append(layers.BatchNormalization()(start))
    outputs.append(layers.LSTM(3, name="lstm")(inputs[FLAT]))
    outputs.append(
        layers.MultiHeadAttention(2, 3, name="attention")(*[inputs[FLAT]] * 2)
    )
    outputs.append(layers.Embedding(5, 6, name="embedding")(inputs[(4,)]))
    return keras.Model(list(inputs.values()), outputs)


@pytest.fixture(scope="module", params=["net.keras", "net.h5"])
def path(request, model, tmp_path_factory):
    path = tmp_path_factory.mktemp("keras") / request.param
    model.save(path)
    return path


@pytest.fixture(scope="module")
def network(path):
    return read_keras(path)


def matrix_from(kernels, sites):
    """The product of the matrices of kernels, on a grid and what comes out of it."""
    product = None
    for kernel in kernels:
        geometry = cs.Geometry(**{"grid": tuple(sites) or 1, **kernel.stated})
        weight = kernel.load()
        assert weight.shape == kernel.shape
        matrix = cs.dense_matrix(weight, geometry)
        product = matrix if product is None else matrix @ product
        sites = geometry.out_grid(weight.shape[2:])
    return product


@pytest.mark.parametrize("name", CASES)
def test_kernels_make_the_matrices_of_their_layers(model, network, name):
    _, shape, _ = CASES[name]
    kernels = [k for k in network.kernels if k.name.startswith(f"{name}/")]
    assert len(kernels) == 1 + name.startswith("separable")
    assert all(kernel.linear == (name == "dense") for kernel in kernels)
    got = matrix_from(kernels, shape[:-1])
    np.testing.assert_allclose(got, matrix_of(model.get_layer(name), shape), atol=1e-6)


def test_kernels_of_models_inside_the_model(model, network):
    block = model.get_layer("in")
    deep = block.get_layer("deep")
    found = {k.name: k for k in network.kernels}
    first, second = (layer.name for layer in deep.layers)
    for layer, name, shape in [
        (block.get_layer("same"), "in/same/kernel", (5, 6, 3)),
        (deep.layers[0], f"in/deep/{first}/kernel", (3, 4, 4)),
        (deep.layers[1], f"in/deep/{second}/kernel", (2, 3, 2)),
    ]:
        got = matrix_from([found[name]], shape[:-1])
        np.testing.assert_allclose(got, matrix_of(layer, shape), atol=1e-6)


def test_every_weight_is_a_kernel_or_skipped(model, network):
    count = len(CASES) + 2 + 4
    names = [kernel.name for kernel in network.kernels]
    assert len(set(names)) == len(names) == count
    assert len(names) + len(network.skipped) == len(model.weights)
    reasons = {reason for _, reason in network.skipped}
    assert reasons >= {"has fewer than 3 axes"}
    said = " ".join(reasons)
    assert "MultiHeadAttention" in said or "no layer that the file describes" in said
    assert not any(name.startswith(("lstm", "attention", "embed")) for name in names)


def test_other_numbers_are_written(keras, model, network, path, tmp_path):
    names = ["same/kernel", "up-valid/kernel", "depthwise/kernel", "dense/kernel"]
    names.append("in/same/kernel")
    found = {k.name: k for k in network.kernels}
    changed = {name: 1 + 2 * found[name].load() for name in names}
    target = tmp_path / f"new{path.suffix}"
    network.write(target, changed)
    again = {k.name: k for k in read_keras(target).kernels}
    for name, kernel in found.items():
        want = changed.get(name, kernel.load())
        np.testing.assert_array_equal(again[name].load(), want)
    new = keras.models.load_model(target, compile=False)
    for old, weight in zip(model.weights, new.weights):
        ours = [name.removesuffix("/kernel") for name in names]
        moved = old.path.endswith("kernel") and (old.path.split("/")[-2] in ours)
        want = np.asarray(old) * (1 + moved) + moved
        np.testing.assert_array_equal(np.asarray(weight), want)


def test_all_else_in_the_file_is_kept(network, path, tmp_path):
    kernel = next(k for k in network.kernels if k.name == "same/kernel")
    target = tmp_path / f"new{path.suffix}"
    network.write(target, {kernel.name: -kernel.load()})
    if path.suffix == ".h5":
        old, new = path.read_bytes(), target.read_bytes()
    else:
        with zipfile.ZipFile(path) as before, zipfile.ZipFile(target) as after:
            assert after.namelist() == before.namelist()
            assert after.testzip() is None
            for name in ("metadata.json", "config.json"):
                assert after.read(name) == before.read(name)
            old = before.read("model.weights.h5")
            new = after.read("model.weights.h5")
    assert len(old) == len(new)
    differ = np.flatnonzero(np.frombuffer(old, "u1") != np.frombuffer(new, "u1"))
    # The signs alone: one byte of each number, in one row.
    assert len(differ) == kernel.load().size
    assert np.ptp(differ) == 4 * (kernel.load().size - 1)


def test_what_is_written_is_checked(network, path, tmp_path):
    kernel = next(k for k in network.kernels if k.name == "dense/kernel")
    for array, message in [
        (kernel.load().astype("float64"), "must keep shape .* and dtype float32"),
        (kernel.load().swapaxes(0, 1), r"must keep shape \(3, 4, 1\)"),
        (kernel.load() * np.inf, "'dense/kernel' must stay finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            network.write(tmp_path / f"new{path.suffix}", {kernel.name: array})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes(keras, tmp_path, suffix, dtype):
    layer = keras.layers.Conv1D(2, 3, dtype=dtype)
    model = keras.Sequential([keras.Input((5, 2)), layer])
    model.save(tmp_path / f"k{suffix}")
    (kernel,) = read_keras(tmp_path / f"k{suffix}").kernels
    assert kernel.load().dtype == dtype
    np.testing.assert_array_equal(kernel.load(), np.asarray(layer.kernel).T)


def test_bfloat16_of_keras_files(keras, tmp_path):
    layer = keras.layers.Conv1D(2, 3, dtype="bfloat16")
    model = keras.Sequential([keras.Input((5, 2)), layer])
    model.save(tmp_path / "k.keras")
    network = read_keras(tmp_path / "k.keras")
    (kernel,) = network.kernels
    assert kernel.load().dtype.name == "bfloat16"
    np.testing.assert_array_equal(kernel.load(), np.asarray(layer.kernel).T)
    network.write(tmp_path / "n.keras", {kernel.name: -kernel.load()})
    new = keras.models.load_model(tmp_path / "n.keras").layers[0]
    np.testing.assert_array_equal(np.asarray(new.kernel), -np.asarray(layer.kernel))


def test_custom_layers_are_not_taken_for_keras_own(keras, tmp_path):
    @keras.saving.register_keras_serializable(package="ours")
    class Conv2D(keras.layers.Conv2D):
        """Of the same name, and perhaps of another meaning."""

    model = keras.Sequential([keras.Input((5, 5, 2)), Conv2D(2, 3, name="mine")])
    for name in ("k.keras", "k.h5"):
        model.save(tmp_path / name)
        network = read_keras(tmp_path / name)
        assert not network.kernels
        reasons = dict(network.skipped).values()
        assert {"is of a custom layer", "is of a ours>Conv2D layer"} & set(reasons)


def test_operations_between_layers_are_no_layers(keras, tmp_path):
    start = keras.Input((5, 2))
    first, second = keras.layers.Conv1D(3, 2), keras.layers.Conv1D(4, 2)
    keras.Model(start, second(first(start) + 1)).save(tmp_path / "k.keras")
    kernels = read_keras(tmp_path / "k.keras").kernels
    names = [f"{layer.name}/kernel" for layer in (first, second)]
    assert [kernel.name for kernel in kernels] == names


def test_a_trained_model_has_its_optimizer_skipped(keras, tmp_path):
    model = keras.Sequential([keras.Input((5, 2)), keras.layers.Conv1D(2, 5)])
    model.compile("adam", "mse")
    model.fit(np.ones((2, 5, 2)), np.ones((2, 1, 2)), verbose=0)
    for name in ("k.keras", "k.h5"):
        model.save(tmp_path / name)
        network = read_keras(tmp_path / name)
        assert len(network.kernels) == 1
        assert ("optimizer", "is the state of an optimizer") in network.skipped


def test_weights_of_keras_3_alone_do_not_say_what_they_are(model, tmp_path):
    model.save_weights(tmp_path / "k.weights.h5")
    network = read_keras(tmp_path / "k.weights.h5")
    assert not network.kernels
    assert "is of no layer that the file describes" in dict(network.skipped).values()


def test_layers_have_keras_own_names_of_their_classes(keras):
    snake = __import__("keras.src.utils.naming", fromlist=["x"]).to_snake_case
    for name in dir(keras.layers):
        assert _snake_case(name) == snake(name)


@pytest.mark.parametrize("role", ["conv", "transpose", "depthwise", "pointwise"])
def test_layouts_there_and_back(rng, role):
    array = rng.standard_normal((2, 3, 4, 5))
    there = to_layer(role, array)
    np.testing.assert_array_equal(from_layer(role, there, array.shape), array)


def save_old(path, layers, **options):
    """A file of weights as Keras 2 wrote it; of a whole model, with a `config`."""
    config = options.pop("config", None)
    with h5py.File(path, "w") as file:
        root = file
        if config is not None:
            file.attrs["model_config"] = json.dumps(config)
            root = file.create_group("model_weights")
        names = [name.encode() for name in layers]
        half = len(names) // 2
        root.attrs["layer_names0"] = names[:half]  # as a long list is kept
        root.attrs["layer_names1"] = names[half:]
        for name, weights in layers.items():
            group = root.create_group(name)
            group.attrs["weight_names"] = [weight.encode() for weight in weights]
            for weight, array in weights.items():
                group.create_dataset(weight, data=array, **options)


def test_weights_alone_say_what_they_are_by_their_names(tmp_path, rng):
    def array(*shape):
        return rng.standard_normal(shape).astype("float32")

    layers = {
        "zz": {"zz/kernel:0": array(3, 3, 4, 6), "zz/bias:0": array(6)},
        "dw": {"dw/depthwise_kernel:0": array(3, 3, 4, 2)},
        "sep": {
            "sep_1/depthwise_kernel:0": array(5, 4, 3),
            "sep_1/pointwise_kernel:0": array(1, 12, 6),
        },
        "fc": {"fc/kernel:0": array(4, 5)},
        "lstm": {
            "lstm/cell/kernel:0": array(4, 8),
            "lstm/cell/recurrent_kernel:0": array(2, 8),
        },
        "convlstm": {
            "convlstm/kernel:0": array(3, 3, 2, 8),
            "convlstm/recurrent_kernel:0": array(3, 3, 2, 8),
        },
        "model_1": {"a/kernel:0": array(3, 4, 6), "b/kernel:0": array(3, 4, 6)},
        "gamma": {"gamma/gamma:0": array(1, 1, 1, 6)},
        "ints": {"ints/kernel:0": np.ones((3, 3, 1, 1), "int8")},
        "empty": {"empty/kernel:0": array(3, 0, 2)},
    }
    save_old(tmp_path / "k.h5", layers)
    network = read_keras(tmp_path / "k.h5")
    plain = {"stride": 1, "dilation": 1, "groups": 1, "padding": "valid"}
    matrix = {"grid": 1, "groups": 1, "padding": "valid", "boundary": "zeros"}
    assert [(k.name, k.shape, dict(k.stated)) for k in network.kernels] == [
        ("zz/kernel", (6, 4, 3, 3), {}),
        ("dw/depthwise_kernel", (8, 1, 3, 3), {"groups": 4}),
        ("sep/depthwise_kernel", (12, 1, 5), {"groups": 4}),
        ("sep/pointwise_kernel", (6, 12, 1), plain | {"boundary": "zeros"}),
        ("fc/kernel", (5, 4, 1), matrix),
        ("model_1/a/kernel:0", (6, 4, 3), {}),
        ("model_1/b/kernel:0", (6, 4, 3), {}),
    ]
    assert dict(network.skipped) == {
        "zz/bias": "has fewer than 3 axes",
        "lstm/kernel": "has fewer than 3 axes",
        "lstm/recurrent_kernel": "has fewer than 3 axes",
        "convlstm/kernel": "is of a recurrent layer",
        "convlstm/recurrent_kernel": "is of a recurrent layer",
        "gamma/gamma": "is no kernel",
        "ints/kernel": "holds int8, not floating point",
        "empty/kernel": "has no entries",
    }


def conv(name, **config):
    full = {"name": name, "filters": 1, "kernel_size": [3], "padding": "valid"}
    return {"class_name": "Conv1D", "config": full | config}


def test_old_sequential_models_are_lists(tmp_path):
    config = {"class_name": "Sequential", "config": [conv("c", strides=[2])]}
    layers = {"c": {"c_1/kernel:0": np.ones((3, 1, 1))}}
    save_old(tmp_path / "k.h5", layers, config=config)
    (kernel,) = read_keras(tmp_path / "k.h5").kernels
    assert kernel.stated["stride"] == (2,)


@pytest.mark.parametrize(
    "config",
    [
        {"filters": 2},
        {"kernel_size": [4]},
        {"strides": [0]},
        {"strides": "two"},
        {"strides": [1, 1]},
        {"padding": "full"},
        {"padding": None},
        {"dilation_rate": [[2]]},
        {"groups": 1.5},
    ],
)
@pytest.mark.parametrize("kind", ["Conv1D", "Conv1DTranspose"])
def test_a_configuration_of_something_else_is_no_kernel(tmp_path, kind, config):
    layer = conv("c", **config) | {"class_name": kind}
    model = {"class_name": "Model", "config": {"layers": [layer]}}
    layers = {"c": {"c/kernel:0": np.ones((3, 1, 1))}}
    save_old(tmp_path / "k.h5", layers, config=model)
    network = read_keras(tmp_path / "k.h5")
    reason = "is not what the configuration of its layer states"
    assert network.skipped == (("c/kernel", reason),)


def test_depthwise_kernels_of_keras_2(tmp_path):
    layer = {"name": "c", "depth_multiplier": 3, "kernel_size": [2], "padding": "same"}
    model = {"config": {"layers": [{"class_name": "DepthwiseConv1D", "config": layer}]}}
    layers = {"c": {"c/depthwise_kernel:0": np.ones((2, 5, 3))}}
    save_old(tmp_path / "k.h5", layers, config=model)
    (kernel,) = read_keras(tmp_path / "k.h5").kernels
    assert (kernel.name, kernel.shape) == ("c/depthwise_kernel", (15, 1, 2))
    assert kernel.stated == {"groups": 5, "padding": "same", "boundary": "zeros"}


def test_layers_of_one_name_are_told_apart_by_their_models(tmp_path):
    def inside(name, *layers):
        config = {"name": name, "layers": list(layers)}
        return {"class_name": "Sequential", "config": config}

    two = [inside("a", conv("c", strides=[2])), inside("b", conv("c", strides=[3]))]
    layers = {"m": {f"{name}/c/kernel:0": np.ones((3, 1, 1)) for name in "ab"}}
    save_old(tmp_path / "k.h5", layers, config=inside("", inside("m", *two)))
    kernels = read_keras(tmp_path / "k.h5").kernels
    assert [(k.name, k.stated["stride"]) for k in kernels] == [
        ("m/a/c/kernel", (2,)),
        ("m/b/c/kernel", (3,)),
    ]


def test_names_are_different(tmp_path):
    config = {"config": {"layers": [conv("a"), conv("model_weights/a/a")]}}
    ones = np.ones((3, 1, 1))
    layers = {"a": {"a/kernel": ones, "b/kernel": ones}}
    layers["model_weights/a/a"] = {"kernel": ones}
    save_old(tmp_path / "k.h5", layers, config=config)
    network = read_keras(tmp_path / "k.h5")
    names = [kernel.name for kernel in network.kernels]
    assert names == ["model_weights/a/a/kernel", "model_weights/a/b/kernel"]
    assert dict(network.skipped) == {names[0]: "has the name of another weight"}


def test_a_dense_layer_has_a_matrix(tmp_path):
    layer = {"class_name": "Dense", "config": {"name": "c", "units": 1}}
    layers = {"c": {"c/kernel:0": np.ones((3, 1, 1))}}
    save_old(tmp_path / "k.h5", layers, config={"config": {"layers": [layer]}})
    reason = "is not what the configuration of its layer states"
    assert read_keras(tmp_path / "k.h5").skipped == (("c/kernel", reason),)


def test_layers_that_cannot_be_told_apart_are_skipped(tmp_path):
    inner = {"name": "m", "layers": [conv("c"), conv("c")]}
    model = {"config": {"layers": [{"class_name": "Functional", "config": inner}]}}
    layers = {"m": {"c/kernel:0": np.ones((3, 1, 1))}}
    save_old(tmp_path / "k.h5", layers, config=model)
    reason = "is of no layer that the file describes"
    assert read_keras(tmp_path / "k.h5").skipped == (("m/kernel", reason),)


@pytest.mark.parametrize("suffix", [".h5", ".keras"])
def test_compressed_datasets_are_read_and_not_written(tmp_path, rng, suffix):
    array = rng.standard_normal((3, 1, 1))
    path = tmp_path / f"k{suffix}"
    config = {"config": {"layers": [conv("c")]}, "class_name": "Sequential"}
    if suffix == ".h5":
        save_old(path, {"c": {"c/kernel:0": array}}, compression="gzip")
    else:
        inner = io.BytesIO()
        with h5py.File(inner, "w") as file:
            file.create_dataset("layers/conv1d/vars/0", data=array, compression="gzip")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("config.json", json.dumps(config))
            archive.writestr("model.weights.h5", inner.getvalue())
    (kernel,) = read_keras(path).kernels
    assert kernel.not_writable_because == "is not stored as its plain bytes"
    np.testing.assert_array_equal(kernel.load(), array.T)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g: g.create_dataset("k", (2**31, 1, 1), chunks=True), "must not grow"),
        (lambda g: g.create_dataset("k", (2**20, 1, 1)), "must not grow"),
    ],
)
def test_datasets_larger_than_the_file_are_refused(tmp_path, make, message):
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file.attrs["layer_names"], group = ["c"], file.create_group("c")
        make(group.create_group("c"))
        group["c"].move("k", "kernel:0")
        group.attrs["weight_names"] = ["c/kernel:0"]
    (kernel,) = read_keras(tmp_path / "k.h5").kernels
    with pytest.raises(Refusal, match=message):
        kernel.load()


def test_datasets_that_were_never_written_are_zero(tmp_path):
    with h5py.File(tmp_path / "k.h5", "w", userblock_size=1024) as file:
        file.attrs["layer_names"], group = ["c"], file.create_group("c")
        group.create_dataset("depthwise_kernel", (3, 1, 1))
        group["kernel"] = np.arange(3.0).reshape(3, 1, 1)
        group.attrs["weight_names"] = ["depthwise_kernel", "kernel"]
    late, kernel = read_keras(tmp_path / "k.h5").kernels
    assert late.load().tolist() == [[[0, 0, 0]]]
    assert kernel.load().tolist() == [[[0, 1, 2]]]
    assert (bool(late.not_writable_because), bool(kernel.not_writable_because)) == (
        True,
        False,
    )


def test_every_look_into_a_file_is_limited(tmp_path, monkeypatch):
    limits, run = [], hdf5_store.run
    monkeypatch.setattr(hdf5_store, "run", lambda *a: limits.append(a[1]) or run(*a))
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file.attrs["layer_names"], group = ["c"], file.create_group("c")
        group.create_dataset("kernel", (2**22, 1, 1), chunks=True)
        group.attrs["weight_names"] = ["kernel"]
    (kernel,) = read_keras(tmp_path / "k.h5").kernels
    assert kernel.load().shape == (1, 1, 2**22)
    size = (tmp_path / "k.h5").stat().st_size
    memory = 2**31 + 16 * size
    assert limits == [(memory, 10, 600), (memory + 3 * 2**24, 12, 600)]


def test_attributes_larger_than_the_file_are_refused(tmp_path):
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file.attrs["model_config"] = np.bytes_("x" * 1000)
        assert hdf5_worker._texts(file, 1000) == {"model_config": ["x" * 1000]}
        with pytest.raises(hdf5_worker.Refused, match="must not be larger than"):
            hdf5_worker._texts(file, 999)


def test_numbers_of_other_formats_are_left_to_hdf5(tmp_path):
    array, other = np.array([1, -2, 0.5]).reshape(3, 1, 1), h5py.h5t.IEEE_F32LE.copy()
    other.set_fields(31, 24, 7, 1, 23)  # an exponent with a bit less, in four bytes
    other.set_ebias(63)
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file.attrs["layer_names"], group = ["c"], file.create_group("c")
        group.attrs["weight_names"] = ["kernel"]
        space = h5py.h5s.create_simple(array.shape)
        h5py.h5d.create(group.id, b"kernel", other, space)
        group["kernel"][:] = array
    (kernel,) = read_keras(tmp_path / "k.h5").kernels
    np.testing.assert_array_equal(kernel.load(), array.T)
    assert kernel.not_writable_because


def outside(file):
    layout = h5py.VirtualLayout((3, 1, 1), float)
    layout[:] = h5py.VirtualSource("other.h5", "k", (3, 1, 1), float)
    file.create_virtual_dataset("v", layout)


def deep(file):
    for _ in range(70):
        file = file.create_group("g")


DANGERS = {
    "external-link": (
        lambda f: f.__setitem__("x", h5py.ExternalLink("other.h5", "/")),
        "must have no links, got 'x'",
    ),
    "soft-link": (
        lambda f: f.__setitem__("x", h5py.SoftLink("/c")),
        "must have no links, got 'x'",
    ),
    "external-storage": (
        lambda f: f.create_dataset("x", (3,), external=[("/etc/passwd", 0, 12)]),
        "must be in its own file, got another for 'x'",
    ),
    "virtual": (outside, "must be in its own file, got another for 'v'"),
    "cycle": (lambda f: f["c"].__setitem__("x", f), "must be a tree, got another at"),
    "two-names": (lambda f: f.__setitem__("x", f["c"]), "must be a tree"),
    "deep": (deep, "must be a tree"),
    "missing": (
        lambda f: f.attrs.__setitem__("layer_names", ["c", "d", "d"]),
        "must list different names",
    ),
    "unlisted": (
        lambda f: f["c"].attrs.__setitem__("weight_names", ["nothing"]),
        "must hold all it lists, got no 'c/nothing'",
    ),
    "deep-json": (
        lambda f: f.attrs.__setitem__("model_config", "[" * 10**4),
        "must be a whole Keras file",
    ),
    "no-json": (
        lambda f: f.attrs.__setitem__("model_config", "{"),
        "a whole Keras file",
    ),
    "no-class": (
        lambda f: f.attrs.__setitem__(
            "model_config", json.dumps({"config": [{"config": 3}]})
        ),
        "must be an object with a class",
    ),
}


@pytest.mark.parametrize("danger", DANGERS)
def test_dangers_of_hdf5_are_refused(tmp_path, danger):
    make, message = DANGERS[danger]
    save_old(tmp_path / "k.h5", {"c": {"c/kernel:0": np.ones((3, 1, 1))}})
    with h5py.File(tmp_path / "k.h5", "r+") as file:
        del file.attrs["layer_names0"], file.attrs["layer_names1"]
        file.attrs["layer_names"] = ["c"]
        make(file)
    with pytest.raises(Refusal, match=message):
        read_keras(tmp_path / "k.h5")


def test_models_in_models_in_models_are_refused(tmp_path):
    config = conv("c")
    for _ in range(60):
        config = {
            "class_name": "Functional",
            "config": {"name": "m", "layers": [config]},
        }
    layers = {"m": {"c/kernel:0": np.ones((3, 1, 1))}}
    save_old(tmp_path / "k.h5", layers, config=config)
    with pytest.raises(Refusal, match="must not be that deep"):
        read_keras(tmp_path / "k.h5")


CRASH = f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (CRASH, "HDF5 does not come to an end with it"),
        ("import time; time.sleep(60)", "HDF5 does not come to an end with it"),
        ("1 / 0", "division by zero"),
        ("raise OSError('read failed: errno = 5')", "read failed: errno = 5"),
        ("raise MemoryError", "MemoryError"),
    ],
)
def test_a_crash_of_hdf5_is_an_error(tmp_path, monkeypatch, code, said):
    (tmp_path / "worker.py").write_text(code)
    monkeypatch.setattr(hdf5_store, "WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(hdf5_store, "hdf5_limits", lambda _: Limits(2**31, 10, 1))
    save_old(tmp_path / "k.h5", {})
    message = rf"must be a whole HDF5 file, got one that is .* \({said}\)"
    with pytest.raises(Refusal, match=message):
        read_keras(tmp_path / "k.h5")


def save_new(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)


def weights(**texts):
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["layers/conv1d/vars/0"] = np.ones((3, 1, 1))
        file["layers/conv1d/vars"].attrs.update(texts)
    return buffer.getvalue()


CONFIG = json.dumps({"class_name": "Sequential", "config": {"layers": [conv("c")]}})


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("config.json", CONFIG)], "must have config.json and model.weights.h5"),
        ([("model.weights.h5", weights())], "must have config.json and"),
        (
            [("config.json", " " * 2**25), ("model.weights.h5", b"")],
            "must unpack to at most",
        ),
        ([("config.json", CONFIG), ("model.weights.h5", b"x")], "a whole HDF5 file"),
        ([("config.json", "{"), ("model.weights.h5", b"x")], "a whole Keras file"),
        (
            [("config.json", "[" * 9999), ("model.weights.h5", b"x")],
            "a whole Keras file",
        ),
    ],
)
def test_archives_are_checked(tmp_path, members, message):
    save_new(tmp_path / "k.keras", members, zipfile.ZIP_DEFLATED)
    with pytest.raises(Refusal, match=message):
        read_keras(tmp_path / "k.keras")


def test_members_must_have_different_names(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        save_new(tmp_path / "k.keras", [("config.json", CONFIG)] * 2)
    with pytest.raises(Refusal, match="must have different names"):
        read_keras(tmp_path / "k.keras")


def test_nothing_is_unpacked_where_a_name_says(tmp_path):
    members = [("config.json", CONFIG), ("model.weights.h5", weights())]
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "k.keras"
    save_new(path, [*members, ("../escaped", b"x"), ("/escaped", b"x")])
    network = read_keras(path)
    network.write(path.with_name("new.keras"), {"c/kernel": np.zeros((1, 1, 3))})
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "k.keras", "new.keras"]
    with zipfile.ZipFile(path.with_name("new.keras")) as archive:
        assert archive.read("../escaped") == b"x"


@pytest.mark.parametrize(("name", "count"), [("c", 1), ("another", 0)])
def test_the_names_of_layers_must_agree(tmp_path, name, count):
    members = [("config.json", CONFIG), ("model.weights.h5", weights(name=name))]
    save_new(tmp_path / "k.keras", members)
    assert len(read_keras(tmp_path / "k.keras").kernels) == count


def test_resnet8_of_mlperf():
    network = read_keras(real_data("mlperf_tiny_resnet8_cifar10.h5"))
    shapes = [(16, 3), (16, 16), (16, 16), (32, 16), (32, 32), (32, 16), (64, 32)]
    shapes += [(64, 64), (64, 32), (10, 64)]
    assert [kernel.shape[:2] for kernel in network.kernels] == shapes
    strides = [kernel.stated.get("stride") for kernel in network.kernels]
    two = {3: (2, 2), 5: (2, 2), 6: (2, 2), 8: (2, 2), 9: None}
    assert strides == [two.get(i, (1, 1)) for i in range(10)]
    assert {k.stated["padding"] for k in network.kernels[:9]} == {"same"}


def test_mobilenet_of_weights_alone():
    kernels = read_keras(real_data("mobilenet_v1_0.25_224_keras_imagenet.h5")).kernels
    widths = [8, 16, 32, 32, 64, 64, *[128] * 6, 256, 256]
    shapes = [(8, 3, 3, 3)]
    for i, o in itertools.pairwise(widths):
        shapes += [(i, 1, 3, 3), (o, i, 1, 1)]
    assert [kernel.shape for kernel in kernels] == [*shapes, (1000, 256, 1, 1)]
    stated = [{}, *[s for i in widths[:-1] for s in ({"groups": i}, {})], {}]
    assert [kernel.stated for kernel in kernels] == stated


def test_a_real_network_with_separable_layers():
    kernels = read_keras(real_data("fer_mini_xception.hdf5")).kernels
    # Two convolutions, four blocks of two separable layers and a shortcut, one more.
    assert len(kernels) == 2 + 4 * 5 + 1
    assert kernels[2].name == "separable_conv2d_1/depthwise_kernel"
    assert kernels[2].stated["groups"] == 8
    assert [k.shape for k in kernels if k.stated["stride"] == (2, 2)] == [
        (n, n // 2, 1, 1) for n in (16, 32, 64, 128)
    ]
