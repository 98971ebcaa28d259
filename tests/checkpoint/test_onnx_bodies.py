"""Layers in the bodies of If, Loop and Scan, against the reference evaluator."""

import numpy as np
import pytest
from onnx_models import (
    WEIGHT,
    Tensor,
    grids,
    make_node,
    model_of,
    reads,
    stored,
    value,
)
from optional import needed

from convspectra import Geometry, dense_matrix

onnx = needed("onnx")
make_graph = needed("onnx.helper").make_graph
Evaluator = needed("onnx.reference").ReferenceEvaluator

LENGTH = 7
BASIS = np.eye(2 * LENGTH).reshape(-1, 2, LENGTH)
SCANNED = np.eye(3 * LENGTH).reshape(-1, 1, 3, LENGTH)
BOOL, INT64 = Tensor.BOOL, Tensor.INT64
NAMES = [
    "v@either/else_branch/first",
    "w@either/then_branch/first",
    "v@either/then_branch/second",
    "k",
    "w@scan/body/up",
]


def bodies_model(rng):
    """The same names with other numbers in each body; "w" is seen from all of them."""

    def weight():
        return stored("v", rng.standard_normal((3, 3, 2)))

    def constant(name, array):
        return make_node("Constant", [], [name], value=stored("", array))

    then = make_graph(
        [
            make_node("Conv", ["x", "w"], ["a"], "first", strides=[2]),
            make_node("Conv", ["a", "v"], ["t"], "second"),
        ],
        *("then", [], [value("t")], [weight()]),
    )
    other = make_graph(
        [
            constant("v", rng.standard_normal((3, 2, 4))),
            make_node("Conv", ["x", "v"], ["a"], "first", pads=[2, 0]),
            make_node("BatchNormalization", ["a", *"gzzg"], ["e"], epsilon=0.5),
        ],
        *("else", [], [value("e")]),
    )
    loop = make_graph(
        [
            make_node("Conv", ["state", "k"], ["next"], "step", pads=[1, 1]),
            make_node("Identity", ["go"], ["go on"]),
        ],
        "loop",
        [value("i", [], INT64), value("go", [], BOOL), value("state", ["N", 2, 7])],
        [value("go on", [], BOOL), value("next")],
        [stored("k", rng.standard_normal((2, 2, 3)))],
    )
    scan = make_graph(
        [make_node("ConvTranspose", ["one", "w"], ["up"], "up", strides=[2])],
        *("scan", [value("one")], [value("up")]),
    )
    nodes = [
        make_node("If", ["c"], ["y"], "either", then_branch=then, else_branch=other),
        make_node("Loop", ["once", "yes", "x"], ["l"], "loop", body=loop),
        make_node("Scan", ["xs"], ["s"], "scan", body=scan, num_scan_inputs=1),
    ]
    tensors = {
        "w": rng.standard_normal((3, 2, 3)),
        "once": np.array(1),
        "yes": np.array(True),
        "g": rng.uniform(1, 2, 3),
        "z": np.zeros(3),
    }
    inputs = [value("x", ["N", 2, LENGTH]), value("xs", ["N", 1, 3, LENGTH])]
    return model_of(
        nodes,
        [stored(name, array) for name, array in tensors.items()],
        [*inputs, value("c", [], BOOL)],
        [*"yls"],
    )


def applied(model, branch):
    """The matrices of the outputs of a model, on the branch that is taken."""
    evaluator, taken = Evaluator(model), {"c": np.array(branch)}
    images, bias = (
        evaluator.run(None, taken | {"x": scale * BASIS, "xs": scale * SCANNED})
        for scale in (1, 0)
    )
    return [(y - z).reshape(len(y), -1).T for y, z in zip(images, bias)]


def matrix(kernel):
    return dense_matrix(kernel.load(), Geometry(**kernel.stated))


def test_layers_in_bodies_are_those_of_the_reference_evaluator(tmp_path, rng):
    model = bodies_model(rng)
    network = reads(model, tmp_path)
    assert network.skipped == ()
    assert [kernel.name for kernel in network.kernels] == NAMES
    other, first, second, step, up = network.kernels
    branch = np.repeat(other.factors(), 6)[:, None] * matrix(other)
    then, looped, scanned = applied(model, True)
    for got, want in [
        (matrix(second) @ matrix(first), then),
        (matrix(step), looped),
        (matrix(up), scanned),
        (branch, applied(model, False)[0]),
    ]:
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_a_copy_gets_its_numbers_in_the_bodies(tmp_path, rng):
    network = reads(bodies_model(rng), tmp_path)
    new = {kernel.name: 2 * kernel.load() for kernel in network.kernels}
    network.write(tmp_path / "new.onnx", new)
    again = reads(onnx.load(tmp_path / "new.onnx"), tmp_path)
    assert [kernel.name for kernel in again.kernels] == NAMES
    for kernel in again.kernels:
        np.testing.assert_array_equal(kernel.load(), new[kernel.name])


def test_other_sizes_reach_the_bodies(tmp_path, rng):
    model = bodies_model(rng)
    assert grids(reads(model, tmp_path)) == [(7,), (7,), (3,), (7,), (7,)]
    found = grids(reads(model, tmp_path, (1, 2, 9)))
    assert found == [(9,), (9,), (4,), (9,), (7,)]


@pytest.mark.usefixtures("no_inference")
def test_what_comes_into_a_body_is_not_stored(tmp_path):
    conv = make_node("Conv", ["x", "w"], ["z"], "inner")
    body = make_graph([conv], "body", [value("w")], [value("z")])
    node = make_node("Scan", ["v"], ["y"], "scan", body=body, num_scan_inputs=1)
    network = reads(model_of([node], [stored("w", WEIGHT)]), tmp_path)
    why = "is of type Conv: its weight comes into the body from its node"
    assert network.skipped == (("scan/body/inner", why),)
    assert network.kernels == ()


def test_a_body_hides_the_sizes_of_a_name_around_it(tmp_path):
    # The checker of onnx refuses such names; a grid must not be made up from them.
    conv = make_node("Conv", ["x", "w"], ["z"])
    body = make_graph([conv], "body", [value("x")], [value("z")])
    node = make_node("Mine", ["v"], ["y"], domain="mine", body=body)
    model = model_of([node], [stored("w", WEIGHT)], [value("x", [1, 2, 9]), "v"])
    assert grids(reads(model, tmp_path)) == [None]


@pytest.mark.usefixtures("no_inference")
def test_branches_may_give_one_name_to_different_weights(tmp_path):
    def branch(output, weight):
        conv = make_node("Conv", ["x", "w"], [output], "conv")
        return make_graph([conv], "body", [], [value(output)], [stored("w", weight)])

    branches = {"else_branch": branch("e", WEIGHT), "then_branch": branch("t", -WEIGHT)}
    node = make_node("If", ["c"], ["y"], "either", **branches)
    kernels = reads(model_of([node], []), tmp_path).kernels
    assert [kernel.name for kernel in kernels] == [
        "w@either/else_branch/conv",
        "w@either/then_branch/conv",
    ]
    for kernel, sign in zip(kernels, (1, -1)):
        np.testing.assert_array_equal(kernel.load(), sign * WEIGHT)
