"""Grids in ONNX models that onnx alone does not infer, against the evaluator's."""

import numpy as np
import pytest
from onnx_models import Tensor, grids, make_node, model_of, reads, stored, value
from optional import needed

onnx = needed("onnx")
make_graph = needed("onnx.helper").make_graph
Evaluator = needed("onnx.reference").ReferenceEvaluator

KERNEL = stored("w", np.ones((2, 2, 3, 3)))
LAST = make_node("Conv", ["v", "w"], ["y"], "last")
INT64 = Tensor.INT64


def whole(name, numbers):
    return stored(name, np.array(numbers, np.int64))


# As torch exports `F.pad` without folding constants: pads computed from a list.
PADS = [
    make_node("ConstantOfShape", ["4"], ["zeros"], value=whole("", [0])),
    make_node("Concat", ["pads", "zeros"], ["all"], axis=0),
    make_node("Reshape", ["all", "pairs"], ["by pair"]),
    make_node("Slice", ["by pair", "-1", "end", "0", "-1"], ["reversed"]),
    make_node("Transpose", ["reversed"], ["turned"], perm=[1, 0]),
    make_node("Reshape", ["turned", "-1"], ["flat"]),
    make_node("Cast", ["flat"], ["cast"], to=INT64),
    make_node("Pad", ["x", "cast"], ["v"], mode="constant"),
]
# A size computed by a division, as by `interpolate(size=(h // 2 * 3, w // 2 * 3))`.
DIVISION = [
    make_node("Shape", ["x"], ["s"]),
    make_node("Slice", ["s", "2", "end"], ["hw"]),
    make_node("Div", ["hw", "2"], ["half"]),
    make_node("Mul", ["half", "3"], ["more"]),
    make_node("Slice", ["s", "0", "2"], ["nc"]),
    make_node("Concat", ["nc", "more"], ["sizes"], axis=0),
    make_node("Resize", ["x", "", "", "sizes"], ["v"]),
]
# Windows in the batch, and back.
WINDOWS = [
    make_node("Shape", ["x"], ["s"]),
    make_node("ReduceProd", ["s"], ["count"], keepdims=1),
    make_node("Div", ["count", "w2"], ["windows"]),
    make_node("Concat", ["windows", "window"], ["to"], axis=0),
    make_node("Reshape", ["x", "to"], ["v"]),
]
SIZES = [
    *(whole(f"{i}", [i]) for i in (-1, 0, 2, 3, 4)),
    whole("pads", [1, 2, 0, 3]),
    whole("pairs", [-1, 2]),
    whole("w2", [2 * 3 * 4]),
    whole("window", [2, 3, 4]),
]


def with_kernel(nodes, shape=(1, 2, 6, 8), end=2**62):
    tensors = [KERNEL, *SIZES, whole("end", [end])]
    return model_of([*nodes, LAST], tensors, [value("x", shape)])


@pytest.mark.parametrize("batch", [1, "N"])
@pytest.mark.parametrize(
    ("nodes", "end"), [(PADS, -(2**62)), (DIVISION, 2**62), (WINDOWS, 0)]
)
def test_sizes_computed_on_the_way_are_those_of_the_evaluator(
    tmp_path, nodes, end, batch
):
    model = with_kernel(nodes, (batch, 2, 6, 8), end)
    network = reads(model, tmp_path)
    model.graph.output.append(value("v"))
    seen = Evaluator(model).run(None, {"x": np.zeros((1, 2, 6, 8))})[-1]
    assert grids(network) == [seen.shape[2:]]
    assert network.advice == ()


def microsoft(op, *inputs, output="v", **attributes):
    return make_node(op, [*inputs], [output], domain="com.microsoft", **attributes)


@pytest.mark.parametrize(
    ("node", "grid"),
    [
        (microsoft("FastGelu", "x"), (6, 8)),
        (microsoft("QLinearAdd", "x", "w", "w", "row"), (6, 8)),
        (microsoft("FusedConv", "x", "w", activation="Relu"), (4, 6)),
    ],
)
def test_operators_of_onnxruntime_have_rules(tmp_path, node, grid):
    model = with_kernel([node])
    model.opset_import.add(domain="com.microsoft", version=1)
    model.graph.initializer.append(stored("row", np.ones((1, 8))))
    network = reads(model, tmp_path)
    assert grids(network)[-1] == grid
    assert network.advice == ()


def test_where_sizes_are_lost_is_said(tmp_path):
    nodes = [
        make_node("Relu", ["x"], ["a"]),
        make_node("Strange", ["a"], ["b"], "odd one", domain="mine"),
        make_node("Relu", ["b"], ["v"]),
    ]
    network = reads(with_kernel(nodes), tmp_path)
    assert grids(network) == [None]
    (advice,) = network.advice
    assert advice.startswith("Sizes are unknown after Strange 'odd one': ")
    assert advice.endswith("State those of the layers by --geometry.")
    model = with_kernel([make_node("Relu", ["x"], ["v"])], (1, 2, "H", "W"))
    (advice,) = reads(model, tmp_path).advice  # there the input is what is said
    assert advice.startswith("Sizes are unknown, because the graph's input")


def branching(condition):
    """An If whose branches differ in size, as torch exports what may be squeezed."""
    halves = make_node("MaxPool", ["x"], ["t"], kernel_shape=[2, 2], strides=[2, 2])
    branches = {
        "then_branch": make_graph([halves], "then", [], [value("t")]),
        "else_branch": make_graph(
            [make_node("Identity", ["x"], ["e"])], "else", [], [value("e")]
        ),
    }
    return make_node("If", [condition], ["v"], "either", **branches)


# Of a second input, whose last size has the name of the first one's batch.
ALONE = [
    make_node("Shape", ["state"], ["s"], start=1),
    make_node("Equal", ["s", "1"], ["alone"]),
]


@pytest.mark.parametrize(("batch", "grid"), [(1, (3, 4)), (2, (6, 8))])
def test_an_if_gives_what_its_branch_gives(tmp_path, batch, grid):
    inputs = [value("x", ["N", 2, 6, 8]), value("state", [3, "N"])]
    nodes = [*ALONE, branching("alone"), LAST]
    model = model_of(nodes, [KERNEL, whole("1", [1])], inputs)
    assert grids(reads(model, tmp_path, (batch, 2, 6, 8))) == [grid]
    model.graph.output.append(value("v"))
    feeds = {"x": np.zeros((batch, 2, 6, 8)), "state": np.zeros((3, batch))}
    assert Evaluator(model).run(None, feeds)[-1].shape[2:] == grid
    assert grids(reads(model, tmp_path)) == [(3, 4)]  # an open batch is 1


def test_an_if_that_the_input_decides_has_no_grid(tmp_path):
    inputs = [value("x", [1, 2, 6, 8]), value("c", [], Tensor.BOOL)]
    model = model_of([branching("c"), LAST], [KERNEL], inputs)
    network = reads(model, tmp_path)
    assert grids(network) == [None]
    assert network.advice[0].startswith("Sizes are unknown after If 'either': ")


def looping(pads):
    """A Loop whose body keeps the size of its state, or changes it."""
    body = make_graph(
        [
            make_node("Identity", ["go"], ["go on"]),
            make_node("Conv", ["state", "w"], ["next"], "step", pads=pads),
        ],
        "body",
        [value("i", [], INT64), value("go", [], Tensor.BOOL), value("state")],
        [value("go on", [], Tensor.BOOL), value("next")],
    )
    return make_node("Loop", ["3", "", "x"], ["v"], "again", body=body)


def test_a_state_that_keeps_its_size_has_a_grid(tmp_path):
    network = reads(with_kernel([looping([1, 1, 1, 1])]), tmp_path)
    assert grids(network) == [(6, 8), (6, 8)]
    network = reads(with_kernel([looping([0, 0, 0, 0])]), tmp_path)
    assert set(grids(network)) == {None}
    (advice,) = network.advice
    assert advice.startswith("Sizes are unknown after Loop 'again': ")
