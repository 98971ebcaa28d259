"""ONNX models that are damaged or hostile: one sentence for each, and no harm."""

import contextlib
import functools
import itertools
import os
import resource
import time
import tracemalloc

import numpy as np
import pytest
from onnx_models import (
    WEIGHT,
    Tensor,
    conv_model,
    grids,
    make_node,
    model_of,
    only,
    onnx,
    reads,
    stored,
    to_array,
    value,
)

from convspectra._checkpoint import (
    files_of,
    onnx_file,
    onnx_geometry,
    onnx_weights,
)
from convspectra._checkpoint.onnx_file import read_onnx
from convspectra._checkpoint.onnx_network import read_computation
from convspectra._checkpoint.sandbox import Limits
from convspectra._checkpoint.stored import Refusal
from convspectra._network.compose import compose

FAILED = "failed or went beyond its limits, so that sizes of inputs are not known"


def external(tensor, entries):
    """Say that the numbers of a tensor lie in a file."""
    tensor.ClearField("raw_data")
    tensor.data_location = Tensor.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)


def beside(tmp_path, **changes):
    """A model whose weight lies in a file beside it, with other entries for that."""
    folder, model = tmp_path / "model", conv_model()
    folder.mkdir()
    (folder / "w.bin").write_bytes(b"head" + WEIGHT.tobytes() + b"tail")
    entries = {"location": "w.bin", "offset": "4", "length": f"{WEIGHT.nbytes}"}
    external(model.graph.initializer[0], entries | changes)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


@pytest.mark.usefixtures("no_inference")
def test_numbers_beside_the_model_are_read_and_taken_in(tmp_path):
    path, target = beside(tmp_path), tmp_path / "new.onnx"
    network = read_onnx(path)
    np.testing.assert_array_equal(only(network).load(), WEIGHT)
    network.write(target, {})
    (tensor,) = onnx.load(target).graph.initializer
    np.testing.assert_array_equal(to_array(tensor), WEIGHT)
    assert not tensor.external_data
    network.write(path, {"w": 2 * WEIGHT})
    np.testing.assert_array_equal(only(read_onnx(path)).load(), 2 * WEIGHT)


def test_small_numbers_beside_the_model_state_shapes(tmp_path):
    nodes = [
        make_node("Reshape", ["x", "s"], ["r"]),
        make_node("Conv", ["r", "w"], ["y"]),
    ]
    tensors = [stored("s", np.array([1, 2, 7])), stored("w", WEIGHT)]
    model = model_of(nodes, tensors, [value("x", [14])])
    (tmp_path / "s.bin").write_bytes(model.graph.initializer[0].raw_data)
    external(model.graph.initializer[0], {"location": "s.bin"})
    assert grids(reads(model, tmp_path)) == [(7,)]


@pytest.mark.usefixtures("no_inference")
def test_a_model_too_large_for_one_file_is_not_written(tmp_path, monkeypatch):
    path = beside(tmp_path)
    network, size = read_onnx(path), path.stat().st_size
    monkeypatch.setattr(onnx_weights, "LARGEST", size)
    with pytest.raises(ValueError, match=f"must fit into one file of {size} bytes"):
        network.write(tmp_path / "new.onnx", {})
    monkeypatch.setattr(onnx_file, "LARGEST", size - 1)
    with pytest.raises(Refusal, match="Save its weights as external data"):
        read_onnx(path)


@pytest.mark.usefixtures("no_inference")
def test_a_model_may_be_a_link_with_its_numbers(tmp_path):
    path, cache = beside(tmp_path), tmp_path / "cache"
    cache.mkdir()
    for name in ("model.onnx", "w.bin"):
        (cache / name).symlink_to(path.parent / name)
    np.testing.assert_array_equal(only(read_onnx(cache / "model.onnx")).load(), WEIGHT)


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret"}, r"in the folder of the model, got '\.\./secret'"),
        ({"location": "sub/../../secret"}, "Files elsewhere are never opened"),
        ({"location": "/etc/passwd"}, r"got '/etc/passwd'\. Files elsewhere are never"),
        ({"location": "link"}, r"got 'link'\. Files elsewhere are never opened"),
        ({"location": "linked/secret"}, "Files elsewhere are never opened"),
        ({"location": "loop"}, r"must be a whole \.onnx file"),
        ({"location": "a\0b"}, r"must be a whole \.onnx file"),
        ({"location": ""}, "and there is no such file"),
        ({"location": "none"}, "'none' in the folder of the model, and there is no"),
        ({"location": "pipe"}, "and there is no such file"),
        ({"offset": "9"}, "which has 104 bytes, got 96 bytes from 9 on"),
        ({"offset": "-1"}, "must be whole numbers, got '-1'"),
        ({"offset": "1" * 5000}, "must be whole numbers, got '1111"),
        ({"length": "95"}, "must have 96 bytes, got 95"),
        ({"length": f"{10**15}"}, "got 1000000000000000 bytes from 4 on"),
    ],
)
def test_numbers_elsewhere_are_refused(tmp_path, entries, message):
    (tmp_path / "secret").write_bytes(bytes(200))
    path = beside(tmp_path, **entries)
    (path.parent / "link").symlink_to(tmp_path / "secret")
    (path.parent / "linked").symlink_to(tmp_path)
    (path.parent / "loop").symlink_to(path.parent / "loop")
    os.mkfifo(path.parent / "pipe")  # opening it would wait for ever
    with pytest.raises(Refusal, match=message):
        read_onnx(path)
    with contextlib.suppress(Refusal):
        assert set(files_of(path)) <= {path, path.parent / "w.bin"}


def test_the_files_of_a_model_are_those_that_its_tensors_name(tmp_path):
    def tensor(name, location):
        found = stored(name, WEIGHT)
        external(found, {"offset": "0", "location": location})
        return found

    names = ("here", "in/constant", "in/branch", "other")
    (tmp_path / "in").mkdir()
    for name in names:
        (tmp_path / name).touch()
    constant = make_node("Constant", [], ["c"], value=tensor("c", names[1]))
    body = onnx.helper.make_graph([], "body", [], [], [tensor("d", names[2])])
    choice = make_node("If", ["x"], ["z"], then_branch=body)
    weights = [tensor("a", "here"), tensor("b", "here"), tensor("e", "missing")]
    model = model_of([constant, choice], [*weights, stored("f", WEIGHT)])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert files_of(path)[0] == path
    assert sorted(files_of(path)[1:]) == sorted(tmp_path / name for name in names[:3])


def test_numbers_in_the_model_are_not_read_to_find_its_files(tmp_path):
    path, size = tmp_path / "model.onnx", 2**32  # of which no byte is on the disk
    head = b""
    for number in (9, 5, 7):  # raw_data of an initializer of the graph
        head = bytes([number << 3 | 2]) + varint(size + len(head)) + head
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    tracemalloc.start()
    assert files_of(path) == [path]
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    os.truncate(path, len(head) + size - 1)
    with pytest.raises(Refusal, match=r"must be a whole \.onnx file"):
        files_of(path)


@pytest.mark.usefixtures("no_inference")
def test_numbers_elsewhere_are_refused_wherever_they_are_asked_for(tmp_path):
    body, model = onnx.helper.make_graph([], "body", [], []), conv_model()
    body.initializer.add(name="v", data_type=1, dims=[1])
    external(body.initializer[0], {"location": "/etc/passwd"})
    model.graph.node.append(make_node("If", ["x"], ["z"], then_branch=body))
    with pytest.raises(Refusal, match="Files elsewhere are never opened"):
        reads(model, tmp_path)


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dims": [-1, 2, 3]}, r"must not be negative, got \(-1, 2, 3\)"),
        ({"dims": [2**40, 2**40, 2**40]}, "bytes, got 96"),
        ({"dims": [2**62, 4, 2]}, "must have 295147905179352825856 bytes, got 96"),
        ({"dims": [2, 2, 4]}, "must have 128 bytes, got 96"),
        ({"raw_data": bytes(97)}, "must have 96 bytes, got 97"),
        ({"raw_data": b""}, "must have 96 bytes, got 0"),
        ({"raw_data": b"", "double_data": [1.0] * 11}, "must have 96 bytes, got 88"),
    ],
)
def test_a_tensor_is_checked_against_its_bytes(tmp_path, fields, message):
    model = conv_model()
    for name in fields:
        model.graph.initializer[0].ClearField(name)
    model.graph.initializer[0].MergeFrom(Tensor(**fields))
    with pytest.raises(Refusal, match=message):
        reads(model, tmp_path)


@pytest.mark.usefixtures("no_inference")
def test_names_must_stand_for_one_array(tmp_path):
    model = conv_model()
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(Refusal, match="got two called 'w'"):
        reads(model, tmp_path)


def varint(number):
    digits = range(max(1, -(-number.bit_length() // 7)))
    found = [number >> 7 * i & 127 for i in digits]
    return bytes([*(128 | d for d in found[:-1]), found[-1]])


def field(number, data):
    """A field of a protobuf message that holds bytes."""
    return bytes([number << 3 | 2]) + varint(len(data)) + data


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize(("depth", "allowed"), [(30, True), (40, False)])
def test_branches_as_deep_as_protobuf_allows(tmp_path, depth, allowed):
    graph, path = conv_model().graph.SerializeToString(), tmp_path / "model.onnx"
    for _ in range(depth):
        graph = field(1, field(4, b"If") + field(5, field(6, graph)))
    path.write_bytes(field(7, graph) + field(8, b"\x10\x15"))
    if allowed:
        kernel = only(read_onnx(path))
        assert (kernel.name, kernel.stated["stride"]) == ("w", (1,))
    else:
        with pytest.raises(Refusal, match=r"must be a whole \.onnx file"):
            read_onnx(path)


CUT = conv_model()
CUT.ClearField("opset_import")  # which comes after the graph


@pytest.mark.parametrize(
    "data",
    [b"", b"\x08\x0a", b"no model at all", bytes(100), CUT.SerializeToString()],
)
def test_other_files_are_refused(tmp_path, data):
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(Refusal, match=r"must hold a graph|must be a whole \.onnx file"):
        read_onnx(tmp_path / "model.onnx")


@pytest.mark.usefixtures("no_inference")
def test_a_name_repeated_often_takes_no_memory(tmp_path):
    count, long = 1000, "n" * 10**6
    hidden = onnx.helper.make_graph([make_node("Conv", [], [])] * count, "b", [], [])
    nodes = [
        make_node(long, [], [f"{i}" for i in range(count)]),
        make_node("Identity", [long], ["w"]),
        make_node("If", ["x"], ["z"], long, then_branch=hidden),
    ]
    for i in range(count):
        nodes.append(make_node("Conv", ["x", "w"], [f"y{i}"], strides=[i + 1]))
    model = model_of(nodes, [stored(long, WEIGHT)])
    tracemalloc.start()
    network = reads(model, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len({kernel.name for kernel in network.kernels}) == count
    assert peak < 3e7  # each of the three would take 1e9


def bomb():
    """A shape joined to itself so often that it takes 2 GB; ten times more, 2 TB."""
    model, names = conv_model(), [f"s{i}" for i in range(23)]
    model.graph.node.append(make_node("Shape", ["x"], ["s0"]))
    for name, twice in itertools.pairwise(names):
        model.graph.node.append(make_node("Concat", [name, name], [twice], axis=0))
    return model


def test_shape_inference_has_limits(tmp_path, monkeypatch):
    network = reads(bomb(), tmp_path)
    assert grids(network) == [None]
    assert network.skipped == (("shape inference", FAILED),)
    limits = Limits(2**30, 60, elapsed=0.01)
    monkeypatch.setattr(onnx_geometry, "onnx_limits", lambda _: limits)
    assert reads(conv_model(), tmp_path).skipped == (("shape inference", FAILED),)


def test_modules_beside_the_model_are_never_run(tmp_path, monkeypatch):
    for name in ("onnx", "json", "contextlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert grids(reads(conv_model(), tmp_path)) == [(5,)]


def small_model():
    """A model with a bit of everything, small enough that its structure is hit."""
    attributes = {"pads": [1, 1], "auto_pad": "NOTSET", "group": 1, "strides": [1]}
    half = WEIGHT.astype("float16")
    quantized = [stored("q", WEIGHT.astype("int8")), stored("s", np.ones(2, "f"))]
    body = onnx.helper.make_graph(
        [make_node("Conv", ["h", "w"], ["i"])], "body", [], [value("i")]
    )
    nodes = [
        make_node("Conv", ["x", "w"], ["c"], "conv", **attributes),
        make_node("BatchNormalization", [*"cgggg"], ["d"], epsilon=0.5),
        make_node("Constant", [], ["k"], value=stored("", half)),
        make_node("Cast", ["k"], ["l"], to=Tensor.DOUBLE),
        make_node("ConvTranspose", ["d", "l"], ["e"], output_padding=[0]),
        make_node("DequantizeLinear", ["q", "s"], ["v"], axis=0),
        make_node("Conv", ["e", "v"], ["f"], auto_pad="SAME_LOWER", dilations=[2]),
        make_node("Shape", ["f"], ["n"]),
        make_node("Reshape", ["f", "n"], ["h"]),
        make_node("Gemm", ["h", "m"], ["o"], transB=1, alpha=0.5),
        make_node("If", ["x"], ["y"], "either", then_branch=body),
        make_node("Pad", ["o", "p"], ["a"], mode="edge"),
        make_node("MaxPool", ["a"], ["b"], kernel_shape=[2], dilations=[1]),
        make_node("AveragePool", ["b"], ["j"], kernel_shape=[2], strides=[2]),
        make_node("LogSoftmax", ["j"], ["r"], axis=2),
        make_node("ReduceMean", ["r", "t"], ["u"]),
        make_node("Mul", ["u", "g"], ["z"]),
    ]
    tensors = [stored("w", WEIGHT), stored("g", np.ones(2)), stored("m", np.eye(2))]
    tensors += [stored("p", np.array([0, 0, 1, 0, 0, 2])), stored("t", np.array([2]))]
    inputs, outputs = [value("x", [1, 2, 9])], ("y", "z")
    model = model_of(nodes, [*tensors, *quantized], inputs, outputs)
    model.graph.value_info.append(value("f", [1, 2, 11]))
    return model.SerializeToString()


def number_at(data, start):
    """The varint at a place, and the place after it."""
    end = start
    while data[end] & 128:
        end += 1
    digits = (data[i] & 127 for i in range(end, start - 1, -1))
    return functools.reduce(lambda high, low: high << 7 | low, digits), end + 1


def fields(data):
    """The fields of a message: tag and content, or None for what is no message."""
    found, start = [], 0
    try:
        while start < len(data):
            tag, at = number_at(data, start)
            size, inside = {0: (0, at), 1: (8, at), 5: (4, at)}.get(tag & 7, (None, at))
            if tag & 7 == 2:
                size, inside = number_at(data, at)
            if tag & 7 == 0:
                size = number_at(data, at)[1] - at
            if size is None or inside + size > len(data):
                return None
            found.append((data[start:at], data[inside : inside + size]))
            start = inside + size
    except IndexError:
        return None
    return found


def damaged(data, rng):
    """A message with a field that is dropped, doubled or changed, at any depth."""
    found = fields(data)
    if not found or (len(found) == 1 and not found[0][1]):
        return rng.bytes(len(data))
    parts = [
        tag + (varint(len(content)) if tag[0] & 7 == 2 else b"") + content
        for tag, content in found
    ]
    place, kind = rng.integers(len(parts)), rng.integers(12)
    tag, content = found[place]
    if kind == 0:
        parts[place] = b""
    elif kind == 1:
        parts[place] *= 2
    elif kind == 2:  # a length, in messages whose lengths are right
        parts[place] = parts[place].replace(varint(len(content)), rng.bytes(1), 1)
    elif tag[0] & 7 == 2:
        content = damaged(content, rng)
        parts[place] = tag + varint(len(content)) + content
    elif tag[0] & 7 == 0:
        limits = (0, 1, 2, 127, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
        parts[place] = tag + varint(limits[rng.integers(len(limits))])
    else:
        parts[place] = tag + rng.bytes(len(content))
    return b"".join(parts)


def mutants(data, count):
    """Copies with flipped bits, cut, with spans doubled or dropped, or `damaged`."""
    rng = np.random.default_rng(7)
    for i in range(count):
        at, span = rng.integers(len(data)), rng.integers(1, 40)
        new = bytearray(data)
        if i % 10 == 0:
            del new[at:]
        elif i % 10 == 1:
            new[at:at] = new[at : at + span]
        elif i % 10 == 2:
            del new[at : at + span]
        elif i % 10 < 5:
            for place in rng.integers(len(data), size=rng.integers(1, 4)):
                new[place] ^= 1 << rng.integers(8)
        else:
            new = damaged(data, rng)
        yield bytes(new)


def outcomes(tmp_path, count):
    """How many of the mutants are read, all numbers included, and how many refused."""
    read, reasons = 0, []
    for data in mutants(small_model(), count):
        (tmp_path / "model.onnx").write_bytes(data)
        start = time.perf_counter()
        try:
            network = read_onnx(tmp_path / "model.onnx")
            for kernel in network.kernels:
                assert kernel.load().shape == kernel.shape
                if kernel.factors is not None:
                    kernel.factors()
            network.write(tmp_path / "new.onnx", {})
            whole = read_computation(tmp_path / "model.onnx")
            compose(whole.nodes, whole.outputs, rtol=0.1)
            assert files_of(tmp_path / "model.onnx") == [tmp_path / "model.onnx"]
            read += 1
        except (ValueError, OSError) as error:
            reasons.append(f"{error}")
        assert time.perf_counter() - start < 20
    assert all(reasons)
    return read, len(reasons)


@pytest.mark.usefixtures("no_inference")
def test_a_handful_of_mutants_are_read_or_refused(tmp_path):
    read, refused = outcomes(tmp_path, 50)
    assert min(read, refused) > 5


@pytest.mark.slow
def test_thousands_of_mutants_are_read_or_refused(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read, refused = outcomes(tmp_path, 2000)
    assert min(read, refused) > 500
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 2**17  # kilobytes
