"""Bounds of whole ONNX networks, judged by onnx's own evaluator."""

import math

import numpy as np
import pytest
from optional import needed

onnx = needed("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_models import (  # noqa: E402
    grids,
    make_node,
    model_of,
    reads,
    stored,
    value,
)

from convspectra._checkpoint.onnx_network import read_computation  # noqa: E402
from convspectra._checkpoint.onnx_operators import RULES, SLOPED  # noqa: E402
from convspectra._network.compose import compose  # noqa: E402

ROOM = 1 + 1e-3  # for differences in the place of derivatives, and single precision
IMAGE = (1, 3, 6, 4)
FACTORS = np.array([0.5, -2.0, 1.0])
GAMMA, VARIANCE = np.array([0.5, -2.0, 1.0]), np.array([0.2, 1.5, 0.1])


def bounds_of(path, sizes=None):
    read = read_computation(path, sizes)
    return compose(read.nodes, read.outputs, 1e-4)


def case(op, *tensors, shape=IMAGE, loose=1.001, reads=None, **attributes):
    """A network of one node, whose inputs are x and these tensors."""
    return op, tensors, shape, loose, reads, attributes


ints = np.array
CASES = {
    "DepthToSpace": case("DepthToSpace", shape=(1, 4, 2, 3), blocksize=2),
    "Cast": case("Cast", to=1),
    "Dropout": case("Dropout"),
    "Dropout, not in training": case("Dropout", np.float32(0.5), np.array(False)),
    "Flatten": case("Flatten"),
    "GlobalMaxPool": case("GlobalMaxPool"),
    "Identity": case("Identity"),
    "ReduceMax": case("ReduceMax", ints([2, 3])),
    "ReduceMin": case("ReduceMin", ints([1])),
    "Reshape": case("Reshape", ints([6, -1])),
    "Slice": case("Slice", ints([1]), ints([5]), ints([2])),
    "SpaceToDepth": case("SpaceToDepth", blocksize=2),
    "Split": case("Split", ints([4, 2]), axis=2),
    "Squeeze": case("Squeeze", ints([0])),
    "Transpose": case("Transpose", perm=[0, 2, 3, 1]),
    "Unsqueeze": case("Unsqueeze", ints([0])),
    **{
        op: case(op, shape=(1, 150), loose=1.03)
        for op in (
            *SLOPED.split(),
            *["Celu", "Elu", "HardSigmoid", "LeakyRelu", "Selu", "Sigmoid"],
        )
        if op != "Softmax"
    },
    "Elu, steep": case("Elu", shape=(1, 150), alpha=1.5, loose=1.02),
    "LeakyRelu, steep": case("LeakyRelu", alpha=-1.5),
    "PRelu": case("PRelu", FACTORS[:, None, None]),
    "Softmax": case("Softmax", shape=(3, 2), loose=1.1),
    "LogSoftmax": case("LogSoftmax", shape=(3, 2), axis=0, loose=1.3),
    "MaxPool": case("MaxPool", kernel_shape=[3, 3], strides=[2, 2], loose=1.5),
    "MaxPool, dilated": case("MaxPool", kernel_shape=[2, 2], dilations=[2, 2], loose=2),
    "AveragePool": case("AveragePool", kernel_shape=[2, 2], strides=[2, 2]),
    "AveragePool, padded": case(
        "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], loose=1.5
    ),
    "AveragePool, counted": case(
        "AveragePool",
        kernel_shape=[3, 3],
        pads=[1, 1, 1, 1],
        count_include_pad=1,
        loose=1.3,
    ),
    "AveragePool, dilated": case(
        "AveragePool",
        kernel_shape=[2, 2],
        dilations=[2, 1],
        pads=[0, 1, 0, 0],
        loose=1.5,
    ),
    "AveragePool, ceil": case(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, loose=1.5
    ),
    "AveragePool, of one": case(
        "AveragePool",
        shape=(1, 2, 1, 1),
        kernel_shape=[3, 3],
        strides=[3, 3],
        pads=[1] * 4,
    ),
    "GlobalAveragePool": case("GlobalAveragePool"),
    "ReduceMean": case("ReduceMean", ints([2, 3])),
    "ReduceMean, all": case("ReduceMean"),
    "ReduceSum": case("ReduceSum", ints([-1])),
    "Pad": case("Pad", ints([0, 0, 1, 2, 0, 0, 0, 1])),
    "Pad, reflect": case("Pad", ints([0, 0, 1, 2, 0, 0, 3, 1]), mode="reflect"),
    "Pad, edge": case("Pad", ints([0, 0, 2, 0, 0, 0, 3, 1]), mode="edge"),
    "Pad, wrap": case("Pad", ints([0, 0, 2, 0, 0, 0, 3, 1]), mode="wrap"),
    "Resize": case(
        "Resize", np.array([]), np.array([1, 1, 2, 3], np.float32), mode="nearest"
    ),
    "BatchNormalization": case(
        "BatchNormalization", GAMMA, GAMMA, GAMMA, VARIANCE, epsilon=0.01
    ),
    "LayerNormalization": case(
        "LayerNormalization", GAMMA, shape=(4, 3), epsilon=4.0, loose=2
    ),
    "InstanceNormalization": case(
        "InstanceNormalization", GAMMA, GAMMA, epsilon=4.0, loose=2
    ),
    "GroupNormalization": case(
        "GroupNormalization", GAMMA, GAMMA, epsilon=4.0, num_groups=3, loose=2
    ),
    "Add": case("Add", FACTORS[:, None, None]),
    "Add, to itself": case("Add", reads=("x", "x")),
    "Add, repeated": case("Add", np.ones((3, 1)), shape=(1, 4)),
    "Sub": case("Sub", np.array(2.0), reads=("t0", "x")),
    "Sum": case("Sum", reads=("x", "x", "x")),
    "Concat": case("Concat", reads=("x", "x"), axis=1),
    "Max": case("Max", reads=("x", "x"), loose=1.5),
    "Min": case("Min", np.zeros(4), loose=1.01),
    "Mul": case("Mul", np.array(-2.5)),
    "Mul, channels": case("Mul", FACTORS[:, None, None], reads=("t0", "x")),
    "Mul, repeated": case("Mul", FACTORS[:, None], shape=(1, 4), loose=1.6),
    "Div": case("Div", np.array(0.4)),
    "Conv": case("Conv", np.arange(-27.0, 27).reshape(2, 3, 3, 3), pads=[1, 1, 1, 1]),
    "Conv, grouped": case("Conv", np.arange(6.0).reshape(3, 1, 2, 1), group=3),
    "ConvTranspose": case(
        "ConvTranspose", np.arange(-9.0, 9).reshape(3, 1, 2, 3), strides=[2, 1]
    ),
    "Gemm": case("Gemm", np.arange(-6.0, 6).reshape(3, 4), shape=(2, 4), transB=1),
    "MatMul": case("MatMul", np.arange(12.0).reshape(4, 3), shape=(2, 4)),
    "MatMul, left": case(
        "MatMul", np.arange(12.0).reshape(3, 4), shape=(4, 2), reads=("t0", "x")
    ),
}


def written(model, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def parts_of(name, number=""):
    """The node, tensors and input of a case, with a number after their names."""
    op, tensors, shape, _, reads, attributes = CASES[name]
    names = [f"t{i}" for i in range(len(tensors))]
    inputs = [f"{each}{number}" for each in reads or ["x", *names]]
    outputs = [f"y{number}", f"z{number}"] if op == "Split" else [f"y{number}"]
    node = make_node(op, inputs, outputs, f"node {number}", **attributes)
    arrays = [stored(f"{n}{number}", t) for n, t in zip(names, tensors)]
    return node, arrays, value(f"x{number}", shape)


def network(name):
    node, arrays, x = parts_of(name)
    return model_of([node], arrays, [x], [value("y")])


@pytest.fixture(scope="module")
def bounds_of_all(tmp_path_factory):
    """The bound of each case by itself, from one file with all of them."""
    parts = [parts_of(name, number) for number, name in enumerate(CASES)]
    model = model_of(
        [node for node, _, _ in parts],
        [array for _, arrays, _ in parts for array in arrays],
        [x for _, _, x in parts],
        [value(f"y{number}") for number in range(len(parts))],
    )
    read = read_computation(written(model, tmp_path_factory.mktemp("onnx")))
    ends = zip(CASES, read.outputs, strict=True)
    return {name: compose(read.nodes, [end], 1e-4) for name, end in ends}


def largest_of_jacobians(model, shape, rng):
    """By differences of outputs, at small and at large inputs."""
    run, found, step = ReferenceEvaluator(model), [], 1e-3
    for size in (0.01, 1.0, 3.0):
        x = size * rng.standard_normal(shape)
        columns = []
        for i in range(x.size):
            change = np.zeros(x.size)
            change[i] = step
            ends = [
                run.run(None, {"x": x + s * change.reshape(shape)}) for s in (1, -1)
            ]
            columns.append((ends[0][0] - ends[1][0]).ravel() / (2 * step))
        found.append(np.linalg.norm(np.transpose(columns), 2))
    return max(found)


@pytest.mark.parametrize("name", CASES)
def test_no_jacobian_exceeds_the_bound_of_an_operator(name, bounds_of_all, rng):
    bounds, (_, _, shape, loose, *_) = bounds_of_all[name], CASES[name]
    found = largest_of_jacobians(network(name), shape, rng)
    assert not bounds.unknown
    assert found <= bounds.upper * ROOM
    assert bounds.upper <= found * loose * ROOM


def test_every_rule_has_a_case():
    assert set(RULES) <= {op for op, *_ in CASES.values()}


def residual(last="Relu"):
    """Conv, BatchNorm and a function, beside a shortcut."""
    weight = np.arange(-9.0, 9).reshape(2, 1, 3, 3).repeat(2, 1)
    norm = np.array([[0.5, -1], [1, 2], [3, 4], [5, 6]])
    nodes = [
        make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        make_node("BatchNormalization", ["a", "n0", "n1", "n2", "n3"], ["b"], "norm"),
        make_node(last, ["b"], ["c"], "last"),
        make_node("Add", ["x", "c"], ["y"], "add"),
    ]
    tensors = [stored(f"n{i}", x) for i, x in enumerate(norm)] + [stored("w", weight)]
    return model_of(nodes, tensors, [value("x", (1, 2, 5, 4))])


def test_a_batch_norm_belongs_to_the_convolution_before_it(tmp_path, rng):
    model = residual()
    bounds = bounds_of(written(model, tmp_path))
    assert [part.name for part in bounds.parts] == ["conv+norm", "add"]
    assert bounds.upper == pytest.approx(1 + bounds.parts[0].norm)
    assert largest_of_jacobians(model, (1, 2, 5, 4), rng) <= bounds.upper


def test_what_has_no_bound_is_named(tmp_path):
    bounds = bounds_of(written(residual(last="Exp"), tmp_path))
    assert bounds.upper == math.inf
    assert bounds.unknown == {"last": "this operator is not known"}


def test_sizes_that_nobody_states(tmp_path):
    node = make_node("GlobalAveragePool", ["x"], ["y"], "mean")
    path = written(model_of([node], [], [value("x", ["N", 3, "H", "W"])]), tmp_path)
    assert "sizes" in bounds_of(path).unknown["mean"]
    assert bounds_of(path, (1, 3, 4, 4)).upper == pytest.approx(0.25)


def upper_of(path, nodes, tensors=(), shape=(1, 4), opset=21, functions=(), **more):
    arrays = [stored(name, np.asarray(array)) for name, array in dict(tensors).items()]
    inputs = [value("x", shape, **more)]
    model = model_of(nodes, arrays, inputs, functions=list(functions))
    model.opset_import[0].version = opset
    return bounds_of(written(model, path)).upper


def branch(op, name):
    node = make_node(op, ["x", "c"][: 2 if op == "Mul" else 1], [name])
    return onnx.helper.make_graph([node], name, [], [value(name)])


BRANCHES = {"then_branch": branch("Mul", "t"), "else_branch": branch("Identity", "e")}
RESIZE = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
SCALED = {"r": np.array([]), "s": np.array([1, 1, 2.09], np.float32)}
# What looks like an operator with a bound and has another, or none: nodes, what the
# bound is at least, and what they read.
OTHER_ARGUMENTS = {
    "gated linear unit": (
        [
            make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
            make_node("Sigmoid", ["b"], ["g"]),
            make_node("Mul", ["a", "g"], ["y"]),
        ],
        math.inf,
        {},
    ),
    "a body that reads the input": (
        [make_node("If", ["k"], ["y"], **BRANCHES)],
        50,
        {"tensors": {"k": np.array(True), "c": 50.0}},
    ),
    "a bias that depends on the input": (
        [make_node("Gemm", ["x", "w", "x"], ["y"], beta=3.0)],
        3.1,
        {"tensors": {"w": 0.1 * np.eye(4)}},
    ),
    "channels on the other axis": (
        [
            make_node("Gemm", ["w", "x"], ["a"]),
            make_node("Mul", ["a", "f"], ["y"]),
        ],
        100,
        {"tensors": {"w": np.diag([10, 0.1]), "f": [0.1, 10]}, "shape": (2, 2)},
    ),
    "an axis of an earlier version": (
        [make_node("LogSoftmax", ["x"], ["y"])],
        48**0.5,
        {"opset": 11, "shape": (1, 3, 4, 4)},
    ),
    "training of an earlier version": (
        [make_node("BatchNormalization", [*"xffff"], ["y"])],
        math.inf,
        {"opset": 6, "tensors": {"f": np.full(4, 1e6)}},
    ),
    "training that more results ask for": (
        [make_node("BatchNormalization", [*"xffff"], [*"yabcd"])],
        math.inf,
        {"opset": 9, "tensors": {"f": np.full(4, 1e6)}},
    ),
    "repeats of an earlier version": (
        [make_node("Add", ["c", "x"], ["y"], broadcast=1, axis=1)],
        24**0.5,
        {"opset": 6, "shape": (3,), "tensors": {"c": np.ones((1, 3, 6, 4))}},
    ),
    "no axes mean none": (
        [make_node("ReduceMean", ["x"], ["y"], noop_with_empty_axes=1)],
        1,
        {},
    ),
    "no axes mean all": (
        [make_node("ReduceSum", ["x", "a"], ["y"])],
        2,
        {"tensors": {"a": np.array([], int)}},
    ),
    "a constant that is wider": (
        [make_node("Add", ["x", "c"], ["y"])],
        3**0.5,
        {"shape": ("N", 4), "tensors": {"c": np.ones((3, 4))}},
    ),
    "places of the largest": (
        [make_node("MaxPool", ["x"], ["a", "y"], kernel_shape=[2])],
        math.inf,
        {"shape": (1, 1, 4)},
    ),
    "the spread of a normalization": (
        [make_node("LayerNormalization", ["x", "g"], ["a", "b", "y"])],
        math.inf,
        {"tensors": {"g": np.ones(4)}},
    ),
    "factors that are no numbers": (
        [make_node("LayerNormalization", ["x", "g"], ["y"])],
        math.inf,
        {"tensors": {"g": np.full(4, np.nan)}},
    ),
    "resized to open sizes": (
        [make_node("Resize", ["x", "r", "s"], ["y"], **RESIZE)],
        2,
        {"shape": (1, 1, "H"), "tensors": {"r": [], "s": np.float32([1, 1, 4])}},
    ),
    "resized by a broken factor": (
        [make_node("Resize", ["x", "r", "s"], ["y"], nearest_mode="floor", **RESIZE)],
        3**0.5,
        {"shape": (1, 1, 10), "tensors": SCALED},
    ),
    "resized upwards": (
        [make_node("Resize", ["x", "r", "s"], ["y"], nearest_mode="ceil", **RESIZE)],
        3**0.5,
        {"shape": (1, 1, 2), "tensors": {"r": [], "s": np.float32([1, 1, 2])}},
    ),
    "pads of other axes": (
        [make_node("Pad", ["x", "p", "", "a"], ["y"], mode="wrap")],
        2,
        {"shape": (2, 10), "tensors": {"p": [0, 6, 0, 0], "a": [1, 0]}},
    ),
    "an operator of others": (
        [
            make_node("Sigmoid", ["x"], ["g"], domain="mine"),
            make_node("Mul", ["x", "g"], ["y"]),
        ],
        math.inf,
        {},
    ),
    "celu that grows": ([make_node("Celu", ["x"], ["y"], alpha=-1.0)], math.inf, {}),
    "whole numbers": (
        [make_node("Div", ["x", "c"], ["y"])],
        1,
        {"kind": onnx.TensorProto.INT64, "tensors": {"c": np.array(4)}},
    ),
    "whole numbers of real ones": (
        [make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT32)],
        math.inf,
        {},
    ),
    "dropout in training": (
        [make_node("Dropout", ["x", "r", "t"], ["y"])],
        4,
        {"tensors": {"r": 0.75, "t": np.array(True)}},
    ),
}


SAME = [onnx.helper.make_opsetid("", 21)]
FIFTY = onnx.helper.make_function(
    "mine",
    "Size",
    ["a"],
    ["b"],
    [
        make_node("Constant", [], ["k"], value=stored("", 50.0)),
        make_node("Mul", ["a", "k"], ["b"]),
    ],
    SAME,
)
OTHER_ARGUMENTS |= {
    "a size that is a function": (
        [make_node("Size", ["x"], ["y"], domain="mine")],
        50,
        {"functions": [FIFTY]},
    ),
    "a size that depends on numbers": (
        [
            make_node("NonZero", ["x"], ["a"]),
            make_node("Size", ["a"], ["b"]),
            make_node("Cast", ["b"], ["y"], to=11),
        ],
        1000,
        {},
    ),
    "random constants": (
        [
            make_node("RandomNormal", [], ["r"], shape=[1, 4]),
            make_node("Add", ["x", "r"], ["y"]),
        ],
        math.inf,
        {},
    ),
    "constants that are dropped": (
        [
            make_node("Dropout", ["c", "r", "t"], ["d"]),
            make_node("Add", ["x", "d"], ["y"]),
        ],
        math.inf,
        {"tensors": {"c": np.ones(4), "r": 0.5, "t": np.array(True)}},
    ),
    "fewer scales than axes": (
        [make_node("Resize", ["x", "", "s"], ["y"])],
        math.inf,
        {"shape": (1, 1, 4), "tensors": {"s": np.array([2.0], np.float32)}},
    ),
    "pads of a number": (
        [make_node("Pad", ["x", "p"], ["y"], mode="reflect")],
        1,
        {"shape": (), "tensors": {"p": np.array([], int)}},
    ),
}


@pytest.mark.parametrize("case", OTHER_ARGUMENTS)
def test_other_arguments_have_another_bound_or_none(case, tmp_path):
    nodes, least, given = OTHER_ARGUMENTS[case]
    assert upper_of(tmp_path, nodes, **given) >= least


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (make_node("HardSigmoid", ["x"], ["y"]), float(np.float32(0.2))),
        (make_node("LogSoftmax", ["x"], ["y"]), 2.0),
        (make_node("Gemm", ["x", "h"], ["y"], alpha=1e-8), float(np.float32(1e-8))),
    ],
)
def test_bounds_are_not_rounded_down(node, expected, tmp_path):
    found = upper_of(tmp_path, [node], {"h": np.eye(4, dtype="float16")})
    assert expected <= found <= expected * (1 + 1e-4)


def test_names_that_are_not_unique_are_told_apart(tmp_path):
    nodes = [make_node("Exp", [a], [b], "same") for a, b in ("xa", "ay")]
    model = model_of(nodes, [], [value("x", (1, 4))])
    bounds = bounds_of(written(model, tmp_path))
    assert [*bounds.unknown] == ["same", "same@1"]


def test_a_size_that_is_no_batch_is_not_one(tmp_path):
    nodes = [
        make_node("ReduceSum", ["x", "a"], ["y"]),
        make_node("Identity", ["m"], ["z"]),
    ]
    inputs = [value("x", [1, "T", 4]), value("m", ["T"])]
    model = model_of(nodes, [stored("a", np.array([1]))], inputs, ("y", "z"))
    assert bounds_of(written(model, tmp_path)).upper == math.inf


def test_a_length_is_no_batch_where_a_convolution_reads_it(tmp_path):
    nodes = [
        make_node("Conv", ["x", "w"], ["y"], pads=[1, 1]),
        make_node("Identity", ["m"], ["z"]),
    ]
    inputs = [value("x", [1, 1, "T"]), value("m", ["T"])]
    model = model_of(nodes, [stored("w", np.ones((1, 1, 3)))], inputs, ("y", "z"))
    assert grids(reads(model, tmp_path)) == [None]
    assert bounds_of(written(model, tmp_path)).upper >= 3  # the limit of long inputs


def test_sizes_that_do_not_follow_from_the_input_do_not_count(tmp_path):
    nodes = [
        make_node("Relu", ["x"], ["a"]),
        make_node("GlobalAveragePool", ["a"], ["y"], "mean"),
    ]
    model = model_of(nodes, [], [value("x", [1, 3, "H", "W"])])
    model.graph.value_info.append(value("a", [1, 3, 224, 224]))
    assert "sizes" in bounds_of(written(model, tmp_path)).unknown["mean"]


@pytest.mark.parametrize("name", ["z", "nothing"])
def test_what_is_not_computed_before_is_refused(name, tmp_path):
    nodes = [make_node("Add", ["x", name], ["y"]), make_node("Neg", ["x"], ["z"])]
    with pytest.raises(ValueError, match=f"results of nodes before, got '{name}'"):
        upper_of(tmp_path, nodes)


def test_an_output_that_nothing_gives_is_refused(tmp_path):
    model = model_of([make_node("Neg", ["x"], ["z"])], [], [value("x", (1, 4))])
    with pytest.raises(ValueError, match="got 'y'"):
        bounds_of(written(model, tmp_path))


def test_a_body_reads_its_own_names_and_those_around(tmp_path):
    inner = [make_node("Add", ["x", "c"], ["a"]), make_node("Neg", ["a"], ["b"])]
    body = onnx.helper.make_graph(inner, "body", [], [value("b", (1, 4))])
    node = make_node("If", ["t"], ["y"], "if", then_branch=body, else_branch=body)
    tensors = [stored("t", np.array(True)), stored("c", np.ones(4))]
    found = bounds_of(
        written(model_of([node], tensors, [value("x", (1, 4))]), tmp_path)
    )
    assert found.unknown == {"if": "what its body does is not known"}


def test_a_product_that_exceeds_all_numbers_is_named(tmp_path):
    nodes = [make_node("Mul", [a, "k"], [b], b) for a, b in ("xa", "ay")]
    model = model_of(nodes, [stored("k", np.full(1, 1e200))], [value("x", (1, 4))])
    found = bounds_of(written(model, tmp_path))
    assert found.upper == math.inf
    assert "exceeds 1e308" in found.unknown["y"]


def test_a_layer_on_which_a_method_fails_has_no_bound(monkeypatch, tmp_path):
    def fails(*_):
        raise ArithmeticError("one of our methods has failed.")

    monkeypatch.setattr("convspectra._network.compose._layer_norm", fails)
    found = bounds_of(written(residual(), tmp_path))
    assert found.upper == math.inf
    assert found.unknown == {"conv+norm": "one of our methods has failed"}
