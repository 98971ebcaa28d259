"""ONNX models: each layer against the reference evaluator, there and back."""

import math
import sys

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
    reading,
    reads,
    reason,
    stored,
    to_array,
    value,
)
from optional import needed
from real_data import real_data

from convspectra import Geometry, dense_matrix
from convspectra._checkpoint.onnx_file import read_onnx
from convspectra._checkpoint.stored import Refusal

onnx = needed("onnx")
ml_dtypes = needed("ml_dtypes")
Evaluator = needed("onnx.reference").ReferenceEvaluator

UPPER, LOWER = {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}
PADS = {"pads": [1, 1, 1, 1]}

# name: (shape of the weight, grid, attributes)
CONVS = {
    "plain": ((3, 2, 3, 3), (5, 4), {}),
    "padded": ((3, 2, 3, 3), (5, 4), PADS),
    "padded unevenly": ((2, 2, 3, 2), (4, 5), {"pads": [2, 0, 1, 3]}),
    "strided": ((2, 3, 3, 3), (6, 5), PADS | {"strides": [2, 3]}),
    "dilated": ((2, 2, 3, 2), (7, 5), {"dilations": [2, 3]}),
    "grouped": ((6, 2, 3, 3), (4, 4), PADS | {"group": 3}),
    "depthwise": ((4, 1, 3, 3), (5, 4), {"group": 4, "strides": [2, 1]}),
    "one axis": ((3, 2, 4), (9,), {"strides": [2], "pads": [1, 2]}),
    "three axes": ((2, 2, 2, 1, 3), (3, 2, 4), {"strides": [1, 2, 1]}),
    "kernel stated": ((2, 2, 3, 2), (4, 4), {"kernel_shape": [3, 2]}),
    "notset": ((2, 2, 2, 2), (3, 3), {"auto_pad": "NOTSET", "pads": [1, 0, 0, 1]}),
    "valid": ((2, 2, 3, 3), (5, 5), {"auto_pad": "VALID", "strides": [2, 2]}),
    "upper": ((2, 2, 4, 3), (5, 6), UPPER),
    "upper strided": ((2, 2, 4, 3), (5, 6), UPPER | {"strides": [2, 3]}),
    "upper dilated": ((2, 2, 4, 3), (5, 6), UPPER | {"dilations": [1, 2]}),
    "lower": ((2, 2, 4, 3), (5, 6), LOWER),
    "lower strided": ((2, 2, 4, 3), (5, 6), LOWER | {"strides": [2, 3]}),
    "lower dilated": ((2, 2, 4, 3), (5, 6), LOWER | {"dilations": [1, 2]}),
    "lower, stride past kernel": ((2, 2, 1, 2), (5, 7), LOWER | {"strides": [3, 4]}),
}
MORE = {"strides": [2, 3], "output_padding": [1, 2]}
TRANSPOSED = {
    "transposed": ((3, 2, 3, 2), (3, 4), {}),
    "turned strided": ((3, 2, 3, 4), (3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    "turned dilated": ((3, 2, 3, 4), (3, 2), {"dilations": [2, 3]}),
    "turned with more": ((2, 3, 3, 3), (3, 4), PADS | MORE),
    "turned depthwise": ((3, 1, 3, 3), (3, 2), {"group": 3, "strides": [2, 2]}),
    "turned valid": ((2, 2, 3, 3), (2, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
    "turned upper": ((2, 2, 3, 4), (3, 4), UPPER | {"strides": [2, 1]}),
    "turned lower": ((2, 2, 3, 4), (3, 4), LOWER | {"strides": [2, 1]}),
    "turned lower with more": ((2, 2, 3, 4), (3, 4), LOWER | MORE),
    "turned to a shape": ((2, 2, 3, 4), (3, 4), UPPER | {"output_shape": [2, 5]}),
}
CASES = {
    **{name: ("Conv", *case) for name, case in CONVS.items()},
    **{name: ("ConvTranspose", *case) for name, case in TRANSPOSED.items()},
}


def matrix_of(model, shape, dtype=np.float64):
    """The matrix of a model, by showing it a batch of all basis vectors."""
    size, evaluator = math.prod(shape), Evaluator(model)
    basis = np.eye(size, dtype=dtype).reshape(size, *shape)
    (images,), (bias,) = (evaluator.run(None, {"x": x}) for x in (basis, 0 * basis[:1]))
    return (images - bias).reshape(size, -1).T


def dense(kernel, grid=None):
    return dense_matrix(kernel.load(), Geometry(**{"grid": grid, **kernel.stated}))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """All cases as one model, read at once: by name, the kernel and its own model."""
    rng, models = np.random.default_rng(1), {}
    for name, (op, shape, grid, attributes) in CASES.items():
        weight = rng.standard_normal(shape)
        models[name] = conv_model(weight, grid, op, name, **attributes)
    whole = model_of([], [], [], list(models))
    for name, model in models.items():
        whole.graph.MergeFrom(model.graph)
        whole.graph.input[-1].name = whole.graph.node[-1].input[0] = f"x {name}"
        whole.graph.node[-1].output[0] = f"y {name}"
    network = reads(whole, tmp_path_factory.mktemp("cases"))
    assert network.skipped == ()
    return {kernel.name: (kernel, models[kernel.name]) for kernel in network.kernels}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_that_of_the_reference_evaluator(cases, name):
    kernel, model = cases[name]
    _, *shape = (d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    assert kernel.stated["grid"] == CASES[name][2]
    assert (kernel.not_writable_because, kernel.linear, kernel.factors) == (
        "",
        False,
        None,
    )
    np.testing.assert_allclose(dense(kernel), matrix_of(model, shape), atol=1e-12)


def test_transposed_groups_are_those_of_torch(tmp_path, rng, torch):
    # The reference evaluator of onnx 1.23 is wrong here, but for one channel a group.
    weight, grid = rng.standard_normal((4, 3, 3, 2)), (3, 4)
    options = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
    basis = torch.eye(4 * 12, dtype=torch.float64).reshape(-1, 4, *grid)
    want = torch.nn.functional.conv_transpose2d(basis, torch.tensor(weight), **options)
    options = PADS | {"strides": [2, 2], "output_padding": [1, 1], "group": 2}
    kernel = only(reads(conv_model(weight, grid, "ConvTranspose", **options), tmp_path))
    want = want.reshape(48, -1).numpy().T
    np.testing.assert_allclose(dense(kernel), want, atol=1e-12)


@pytest.mark.parametrize(
    ("attributes", "padding", "more"),
    [  # total = 2 * 2 + 3 - output; the larger half comes first but for SAME_UPPER
        ({"output_shape": [6]}, (1, 0), 0),
        (LOWER | {"output_shape": [4]}, (2, 1), 0),
        (UPPER | {"output_shape": [4]}, (1, 2), 0),
        ({"output_shape": [4], "pads": [9, 9]}, (2, 1), 0),  # pads count for nothing
        ({"output_shape": [8]}, (0, 0), 1),
    ],
)
def test_an_output_shape_is_split_as_onnx_says(tmp_path, attributes, padding, more):
    weight = np.ones((1, 1, 3))
    model = conv_model(weight, (3,), "ConvTranspose", strides=[2], **attributes)
    stated = only(reads(model, tmp_path)).stated
    assert (stated["padding"], stated["output_padding"]) == ((padding,), (more,))
    assert Geometry(**stated).out_grid(3) == tuple(attributes["output_shape"])


def test_a_stride_past_the_kernel_leaves_outputs_without_inputs(tmp_path):
    weight, options = np.ones((1, 1, 2)), UPPER | {"strides": [3]}
    kernel = only(reads(conv_model(weight, (2,), "ConvTranspose", **options), tmp_path))
    want = np.array([[1.0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]]).T
    np.testing.assert_array_equal(dense(kernel), want)


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("Gemm", (3, 2), {}),
        ("Gemm", (2, 3), {"transB": 1}),
        ("Gemm", (3, 2), {"transA": 1}),  # turns what is multiplied
        ("Gemm", (3, 2), {"alpha": 0.3}),
        ("MatMul", (3, 2), {}),
        ("MatMul", (3,), {}),
        ("from the left: Gemm", (2, 3), {}),
        ("from the left: Gemm", (3, 2), {"transA": 1}),
        ("from the left: MatMul", (2, 3), {}),
        ("from the left: MatMul", (3,), {}),
    ],
)
def test_a_matrix_is_that_of_the_reference_evaluator(
    tmp_path, rng, op, shape, attributes
):
    matrix, left = rng.standard_normal(shape), op.startswith("from the left: ")
    node = make_node(op.split()[-1], [*("wx" if left else "xw")], ["y"], **attributes)
    model = model_of([node], [stored("w", matrix)])
    (images,) = Evaluator(model).run(None, {"x": np.eye(3)})
    network = reads(model, tmp_path)
    kernel = only(network)
    assert kernel.linear
    assert kernel.shape == (1 if matrix.ndim == 1 else 2, 3, 1)
    want = np.atleast_2d(images if left else images.T)
    np.testing.assert_allclose(dense(kernel), want, atol=1e-12)
    if "alpha" in attributes:
        assert kernel.not_writable_because == "is multiplied by alpha"
        return
    network.write(tmp_path / "new.onnx", {"w": 2 * kernel.load()})
    (tensor,) = onnx.load(tmp_path / "new.onnx").graph.initializer
    np.testing.assert_array_equal(to_array(tensor), 2 * matrix)


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((), None), ((1,), None), ((3,), 0), ((2,), None), ((4,), -1)]
)
def test_quantized_weights_are_scaled_back(tmp_path, rng, dtype, shape, axis):
    tensors = [
        stored("q", rng.integers(0, 100, (3, 2, 3, 4)).astype(dtype)),
        stored("s", rng.uniform(0.5, 2, shape).astype("float32")),
        stored("z", rng.integers(0, 9, shape).astype(dtype)),
    ][: 2 if dtype == "int32" else 3]
    axes, names = {} if axis is None else {"axis": axis}, [t.name for t in tensors]
    node = make_node("DequantizeLinear", names, ["w"], **axes)
    model = reading(node, tensors=tensors)
    network = reads(model, tmp_path)
    kernel = only(network)
    assert (kernel.name, kernel.not_writable_because) == ("q", "is quantized")
    assert kernel.load().dtype == np.float32
    want = matrix_of(model, (2, 4, 5), np.float32)
    np.testing.assert_allclose(dense(kernel, (4, 5)), want, rtol=1e-6)
    with pytest.raises(ValueError, match="'q' is quantized: its numbers must stay"):
        network.write(tmp_path / "new.onnx", {"q": kernel.load()})


STORED = {
    "initializer": ([], stored("w", WEIGHT)),
    "constant": ([make_node("Constant", [], ["w"], value=stored("", WEIGHT))], None),
    "identity": ([make_node("Identity", ["v"], ["w"])], stored("v", WEIGHT)),
    "half": (
        [make_node("Cast", ["v"], ["w"], to=Tensor.DOUBLE)],
        stored("v", WEIGHT.astype("float16")),
    ),
    "bfloat16": (
        [make_node("Cast", ["v"], ["w"], to=Tensor.DOUBLE)],
        stored("v", WEIGHT.astype(ml_dtypes.bfloat16)),
    ),
    "transposed": (
        [make_node("Transpose", ["v"], ["w"], perm=[1, 2, 0])],
        stored("v", WEIGHT.transpose(2, 0, 1)),
    ),
    "transposed twice": (
        [
            make_node("Transpose", ["v"], ["u"], perm=[1, 2, 0]),
            make_node("Transpose", ["u"], ["w"]),
        ],
        stored("v", WEIGHT.transpose(0, 2, 1)),
    ),
    "one by one": (
        [],
        onnx.helper.make_tensor("w", Tensor.DOUBLE, WEIGHT.shape, WEIGHT.ravel()),
    ),
    "half, one by one": (
        [make_node("Cast", ["v"], ["w"], to=Tensor.DOUBLE)],
        onnx.helper.make_tensor("v", Tensor.FLOAT16, WEIGHT.shape, WEIGHT.ravel()),
    ),
    "bfloat16, one by one": (
        [make_node("Cast", ["v"], ["w"], to=Tensor.DOUBLE)],
        onnx.helper.make_tensor("v", Tensor.BFLOAT16, WEIGHT.shape, WEIGHT.ravel()),
    ),
}


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize("way", STORED)
def test_stored_numbers_are_found_and_written(tmp_path, way):
    nodes, tensor = STORED[way]
    model = reading(*nodes, tensors=[tensor] if tensor else [])
    network, target = reads(model, tmp_path), tmp_path / "new.onnx"
    kernel = only(network)
    assert kernel.name == (tensor.name if tensor else "w")
    assert kernel.load().dtype == (to_array(tensor).dtype if tensor else WEIGHT.dtype)
    np.testing.assert_array_equal(dense(kernel, 4), matrix_of(model, (2, 4)))
    network.write(target, {kernel.name: -kernel.load()})
    new = onnx.load(target)
    np.testing.assert_array_equal(matrix_of(new, (2, 4)), -dense(kernel, 4))
    for array in new.graph.initializer:  # once, not also one by one
        assert not [*array.double_data, *array.int32_data]


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize("scale", [{"value_float": 0.3}, {"value_floats": [0.3, 0.7]}])
def test_scales_may_be_listed_in_a_node(tmp_path, scale):
    nodes = [
        make_node("Constant", [], ["s"], **scale),
        make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0),
    ]
    model = reading(*nodes, tensors=[stored("q", WEIGHT.astype("int8"))])
    want = matrix_of(model, (2, 4), np.float32)
    got = dense(only(reads(model, tmp_path)), 4)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_list_in_a_node_is_fixed(tmp_path):
    node = make_node("Constant", [], ["w"], value_floats=[1.0, 2.0])
    kernel = only(reads(reading(node, op="MatMul"), tmp_path))
    assert kernel.not_writable_because == "is stored as a list"
    np.testing.assert_array_equal(kernel.load(), [[[1.0], [2.0]]])


@pytest.mark.usefixtures("no_inference")
def test_numbers_that_a_cast_rounds_are_fixed(tmp_path, rng):
    weight = rng.standard_normal((2, 2, 3)) * 1e5  # beyond what half precision holds
    nodes = [
        make_node("Cast", ["v"], ["half"], to=Tensor.FLOAT16),
        make_node("Cast", ["half"], ["w"], to=Tensor.DOUBLE),
        make_node("Cast", ["w"], ["again"], to=Tensor.BFLOAT16),
        make_node("Conv", ["x", "again"], ["z"], "last"),
    ]
    network = reads(reading(*nodes, tensors=[stored("v", weight)]), tmp_path)
    (kernel,) = network.kernels
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(kernel.load(), weight.astype("float16"))
    assert kernel.not_writable_because == "is rounded by a Cast after it"
    why = "is of type Conv: its weight is rounded by several Casts"
    assert network.skipped == (("last", why),)


@pytest.mark.parametrize(
    ("op", "shape", "into", "out", "groups"),
    [
        ("Conv", (4, 1, 3, 3), (2, 4, 3), 4, {"group": 2}),
        ("ConvTranspose", (2, 3, 3, 3), (2, 2, 3), 3, {}),
        ("ConvTranspose", (2, 1, 3, 3), (2, 2, 3), 2, {"group": 2}),
        ("Gemm", (3, 4), (3,), 4, {}),
    ],
)
def test_a_batchnorm_gives_its_factors(tmp_path, rng, op, shape, into, out, groups):
    tensors = [stored("w", rng.standard_normal(shape))]
    tensors += [stored(name, rng.uniform(0.5, 2, out)) for name in "bgmv"]
    nodes = [
        make_node(op, [*"xwb"], ["c"], **groups),
        make_node("BatchNormalization", [*"cgbmv"], ["y"], epsilon=0.25),
    ]
    model = model_of(nodes, tensors, [value("x", ["N", *into])])
    kernel = only(reads(model, tmp_path))
    rows = dense(kernel)
    factors = np.repeat(kernel.factors(), len(rows) // out)
    np.testing.assert_allclose(
        rows * factors[:, None], matrix_of(model, into), atol=1e-12
    )


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, True),
        ({"training_mode": 1}, False),
        ({"spatial": 0}, False),
        ({"is_test": 0}, False),
        ({"inputs": [*"xggcg"]}, False),
        ({"outputs": ["y", "mean"]}, False),
        ({"output": "c"}, False),
        ({"nodes": [make_node("Relu", ["c"], ["z"])]}, False),
        ({"gamma": np.ones(3)}, False),
        ({"op_type": "InstanceNormalization"}, False),
        ({"domain": "mine"}, False),
    ],
)
def test_only_a_batchnorm_that_nothing_bypasses_counts(tmp_path, change, found):
    options = {"op_type": "BatchNormalization", "gamma": np.ones(2), "nodes": []}
    options |= {"inputs": [*"cgggg"], "outputs": ["y"], "output": "y"} | change
    tensors = [stored("w", WEIGHT), stored("g", options.pop("gamma"))]
    more, output = options.pop("nodes"), options.pop("output")
    norm = make_node(**options)
    nodes = [make_node("Conv", ["x", "w"], ["c"]), norm, *more]
    kernel = only(reads(model_of(nodes, tensors, outputs=[output]), tmp_path))
    assert (kernel.factors is not None) == found


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize(("stated", "found"), [({}, False), ({"is_test": 1}, True)])
def test_an_old_batchnorm_trains_unless_it_says_otherwise(stated, found, tmp_path):
    norm = make_node("BatchNormalization", [*"cgggg"], ["y"], **stated)
    nodes = [make_node("Conv", ["x", "w"], ["c"]), norm]
    model = model_of(nodes, [stored("w", WEIGHT), stored("g", np.ones(2))])
    model.opset_import[0].version = 6
    assert (only(reads(model, tmp_path)).factors is not None) == found


@pytest.mark.usefixtures("no_inference")
def test_a_negative_variance_has_no_factors(tmp_path):
    nodes = [
        make_node("Conv", ["x", "w"], ["c"]),
        make_node("BatchNormalization", [*"cgggg"], ["y"]),
    ]
    tensors = [stored("w", WEIGHT), stored("g", np.array([1.0, -1.0]))]
    with pytest.raises(Refusal, match="positive variance and finite numbers, got"):
        only(reads(model_of(nodes, tensors), tmp_path)).factors()


@pytest.mark.usefixtures("no_inference")
def test_a_batchnorm_does_not_count_where_a_body_reads_before_it(tmp_path):
    conv = make_node("Conv", ["c", "w"], ["inner"], "hidden")
    body = onnx.helper.make_graph([conv], "body", [], [value("inner")])
    nodes = [
        make_node("Conv", ["x", "w"], ["c"]),
        make_node("BatchNormalization", [*"cgggg"], ["n"]),
        make_node("If", ["x"], ["y"], "either", then_branch=body, else_branch=body),
    ]
    tensors = [stored("w", WEIGHT), stored("g", np.ones(2))]
    kernel = only(reads(model_of(nodes, tensors), tmp_path))
    assert kernel.factors is None


def test_layers_in_functions_are_named_and_skipped(tmp_path):
    opset = [onnx.helper.make_opsetid("", 21)]
    inner = make_node("Conv", ["a", "b"], ["c"])
    make = onnx.helper.make_function
    function = make("mine", "MyConv", ["a", "b"], ["c"], [inner], opset)
    node = make_node("MyConv", ["x", "w"], ["y"], domain="mine")
    model = model_of([node], [stored("w", WEIGHT)], functions=[function])
    why = reason(reads(model, tmp_path))
    assert why == "is of type Conv in the function 'MyConv', which is not supported"


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "why"),
    [
        ("Conv", (2, 2, 3), {"pads": [-1, 0]}, "`padding` must be at least 0, got -1"),
        ("Conv", (2, 2, 3), PADS, "its pads must be 2 numbers, got"),
        ("Conv", (2, 2, 3), {"strides": [0]}, "`stride` must be at least 1, got 0"),
        ("Conv", (2, 2, 3), {"dilations": [1, 1]}, "its dilations must be 1 numbers"),
        ("Conv", (3, 2, 3), {"group": 2}, "its 2 groups do not divide 3"),
        ("Conv", (2, 2, 3), {"group": 0}, "`groups` must be at least 1, got 0"),
        ("Conv", (2, 2, 3), {"kernel_shape": [2]}, "its kernel_shape is not that of"),
        ("Conv", (2, 2, 9), {}, "The layer must have an output, got none on axis 0"),
        ("Conv", (2, 2), {}, "its weight has only 2 axes"),
        ("Conv", (2, 0, 3), {}, r"its weight is empty, of shape \(2, 0, 3\)"),
        ("Conv", (2, 3, 3), {}, r"of shape \(2, 3, 3\) does not fit its input, \[0, 2"),
        ("Conv", (2, 2, 3, 3), {}, "does not fit its input"),
        ("Conv", (2, 2, 3), {"auto_pad": "SAME"}, "its auto_pad is unknown, 'SAME'"),
        ("Conv", (2, 2, 3), UPPER | {"pads": [1, 1]}, "it has both pads and auto_pad"),
        ("ConvTranspose", (2, 2, 3), {"output_padding": [2]}, "must be smaller than"),
        ("ConvTranspose", (2, 2, 3), {"output_shape": [30]}, "must be smaller than"),
        ("ConvTranspose", (2, 2, 3), {"output_shape": [3, 3]}, "must be 1 numbers"),
        ("DeformConv", (2, 2, 3), {}, "this operator is not read"),
        ("Conv", (2, 2, 3), {"domain": "mine"}, "this operator is not read"),
    ],
)
def test_what_no_geometry_states_is_skipped_with_the_reason(
    tmp_path, op, shape, attributes, why
):
    node = make_node(op, ["x", "w"], ["y"], "node", **attributes)
    model = model_of([node], [stored("w", np.ones(shape))], [value("x", ["N", 2, 5])])
    network = reads(model, tmp_path)
    assert network.skipped[0][0] == "node"
    with pytest.raises(ValueError, match=f"^is of type {op}: .*{why}"):
        raise ValueError(reason(network))


def dequantized(scale, *names, **attributes):
    node = make_node("DequantizeLinear", ["q", *names], ["w"], **attributes)
    tensors = [stored("q", WEIGHT.astype("int8")), stored("s", scale)]
    return reading(node, tensors=tensors)


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (reading(), "its weight is an input of the network"),
        (
            reading(make_node("Relu", ["v"], ["w"]), tensors=[stored("v", WEIGHT)]),
            "its weight is computed by Relu",
        ),
        (
            reading(make_node("Identity", ["v"], ["w"]), make_node("Identity", *"wv")),
            "its weight is computed by Identity",  # a cycle
        ),
        (
            reading(
                make_node("Identity", ["v"], ["w"], domain="mine"),
                tensors=[stored("v", WEIGHT)],
            ),
            "its weight is computed by Identity",  # not the one of ONNX
        ),
        (
            reading(
                make_node("Transpose", ["v"], ["w"], perm=[0, 0, 1]),
                tensors=[stored("v", WEIGHT)],
            ),
            "its weight is computed by Transpose",
        ),
        (
            reading(
                make_node("Cast", ["v"], ["w"], to=Tensor.FLOAT),
                tensors=[stored("v", WEIGHT.astype("int8"))],
            ),
            "its weight is computed by Cast",
        ),
        (
            dequantized(np.ones(2, "f"), "s", output_dtype=10),
            "its weight is computed by DequantizeLinear",
        ),
        (reading(tensors=[stored("w", np.ones((1, 1, 1), int))]), "holds int64"),
        (reading(tensors=[stored("w", WEIGHT.astype("int8"))]), "holds int8"),
        (reading(tensors=[stored("w", np.array([["s"]], object))]), "holds STRING"),
        (reading(tensors=[Tensor(name="w", data_type=99)]), "holds an unknown type"),
        (
            reading(tensors=[Tensor(name="w", data_type=1, dims=[1] * 65)]),
            "its weight has 65 axes",
        ),
        (
            reading(tensors=[Tensor(name="w", data_type=1, segment={"end": 3})]),
            "its weight is stored in segments",
        ),
        (reading(op="MatMul", tensors=[stored("w", WEIGHT)]), "must be one matrix"),
        (reading(op="MatMul"), "none of its factors is stored"),
        (
            model_of([make_node("MatMul", [*"ww"], ["y"])], [stored("w", np.eye(2))]),
            "both of its factors are stored",
        ),
        (model_of([make_node("Conv", ["x"], ["y"])], []), "it has no weight"),
        (
            dequantized(np.ones((2, 1, 3), "f"), "s", block_size=2),
            "its weight is quantized in blocks",
        ),
        (
            dequantized(np.ones(3, "f"), "s"),
            r"its weight is quantized with \(3,\) scales along axis 1",
        ),
        (dequantized(np.ones(3, "f"), "x"), "a scale or a zero point that is not"),
        (dequantized(np.ones((), "f"), "s", "x"), "zero point that is not stored"),
    ],
)
def test_what_is_no_stored_weight_is_skipped_with_the_reason(tmp_path, model, why):
    with pytest.raises(ValueError, match=why):
        raise ValueError(reason(reads(model, tmp_path)))


@pytest.mark.usefixtures("no_inference")
def test_sparse_weights_are_skipped(tmp_path):
    model = reading()
    model.graph.sparse_initializer.add(values=stored("w", np.ones(1)), dims=[1, 1, 1])
    why = "is of type Conv: its weight is stored as a sparse array"
    assert reason(reads(model, tmp_path)) == why


def shared_model():
    """One weight for layers that differ in their stride, and in what comes after."""
    nodes = [
        make_node("Conv", ["x", "w"], ["a"], "first"),
        make_node("Conv", ["x", "w"], ["b"], "again"),
        make_node("Conv", ["x", "w"], ["c"], "first", strides=[2]),
        make_node("Conv", ["x", "w"], ["d"]),
        make_node("BatchNormalization", [*"dgggg"], ["e"]),
        make_node("Conv", ["x", "v"], ["f"]),
        make_node("Conv", ["x", "x"], ["h"], "v"),
    ]
    tensors = [stored("w", WEIGHT), stored("v", WEIGHT), stored("g", np.ones(2))]
    return model_of(nodes, tensors, outputs=[*"abcefh"])


@pytest.mark.usefixtures("no_inference")
def test_a_shared_weight_has_a_name_for_each_layer_that_differs(tmp_path):
    network = reads(shared_model(), tmp_path)
    names = [kernel.name for kernel in network.kernels]
    assert names == ["w@first", "w@first@2", "w@d", "v"]
    assert [name for name, _ in network.skipped] == ["v@0"]


@pytest.mark.usefixtures("no_inference")
def test_a_shared_weight_is_written_once_or_not_at_all(tmp_path):
    network = reads(shared_model(), tmp_path)
    new, target = -WEIGHT, tmp_path / "new.onnx"
    network.write(target, {"w@first": new, "w@d": new})
    np.testing.assert_array_equal(read_onnx(target).kernels[1].load(), new)
    with pytest.raises(ValueError, match="'w' serves several layers, which must get"):
        network.write(tmp_path / "not.onnx", {"w@first": new, "w@d": WEIGHT})
    assert not (tmp_path / "not.onnx").exists()


def open_model(*dims, **more):
    """A convolution with padding, a pool and one more, on sizes that may be open."""
    nodes = [
        make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("Conv", ["b", "v"], ["y"], **more),
    ]
    tensors = [stored(name, np.ones((2, 2, 3, 3))) for name in "wv"]
    # A weight among the inputs, as models of 2018 have it, is not what has the sizes.
    inputs = [value("w", [2, 2, 3, 3]), value("x", dims or None)]
    return model_of(nodes, tensors, inputs, [value("y", ["N", 2, 99, 99])])


@pytest.mark.parametrize("dims", [("N", 2, "H", "W"), (-1, 2, -1, 0), (5, 2, 7, 7), ()])
def test_sizes_of_the_input_give_the_grids(tmp_path, dims):
    model = open_model(*dims)
    model.graph.value_info.append(value("b", [5, 2, 3, 3]))  # of the sizes before
    network = reads(model, tmp_path, (1, 2, 8, 13))
    assert grids(network) == [(8, 13), (4, 6)]
    assert network.skipped == ()


def test_open_sizes_leave_the_grid_out(tmp_path):
    model = open_model(-1, 2, -1, 8)
    model.graph.node[0].attribute[0].ints[:] = [9, 9, 9, 9]  # more than -1 takes away
    assert grids(reads(model, tmp_path)) == [None, None]
    assert grids(reads(open_model(1, 2, 6, 8), tmp_path)) == [(6, 8), (3, 4)]


def test_a_stated_size_counts_where_none_follows_from_the_input(tmp_path):
    model = open_model(1, 2, 6, 8)
    model.graph.value_info.append(value("b", [1, 2, 9, 9], Tensor.FLOAT))  # is stale
    assert grids(reads(model, tmp_path)) == [(6, 8), (3, 4)]
    model.graph.node[1].op_type, model.graph.node[1].domain = "Unknown", "mine"
    assert grids(reads(model, tmp_path)) == [(6, 8), (9, 9)]
    assert grids(reads(model, tmp_path, (1, 2, 4, 4))) == [(4, 4), None]
    model.graph.output.append(model.graph.value_info.pop())
    assert grids(reads(model, tmp_path)) == [(6, 8), (9, 9)]
    assert grids(reads(model, tmp_path, (1, 2, 4, 4))) == [(4, 4), None]


def test_what_needs_a_grid_is_skipped_without_one(tmp_path):
    model = open_model("N", 2, "H", "W", strides=[2, 1], **LOWER)
    network = reads(model, tmp_path)
    assert grids(network) == [None]
    why = "is of type Conv: its SAME_LOWER padding depends on an unknown input size"
    assert network.skipped == (("y", why),)
    network = reads(model, tmp_path, (1, 2, 16, 9))
    assert network.kernels[1].stated["padding"] == ((1, 0), (1, 1))
    model = conv_model(WEIGHT, ("W",), "ConvTranspose", output_shape=[5])
    assert "its output_shape depends on an input" in reason(reads(model, tmp_path))


@pytest.mark.usefixtures("no_inference")
def test_same_lower_without_a_stride_needs_no_grid(tmp_path):
    model = open_model("N", 2, "H", "W", dilations=[1, 2], **LOWER)
    assert reads(model, tmp_path).kernels[1].stated["padding"] == ((1, 1), (2, 2))


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((8, 13), "must have 4 sizes, one for each axis of the network's input 'x'"),
        ((1, 2, 0, 3), "`--input` must be at least 1, got 0"),
        ((1, 2, 2**40, 3), r"`--input` must be below 2\*\*31"),
    ],
)
def test_wrong_sizes_are_refused(tmp_path, sizes, message):
    with pytest.raises(ValueError, match=message):
        reads(open_model("N", 2, "H", "W"), tmp_path, sizes)
    with pytest.raises(ValueError, match="whose input is an array, got none"):
        reads(model_of([make_node("Conv", *"xy")], [], []), tmp_path, sizes)


@pytest.mark.usefixtures("no_inference")
def test_a_copy_keeps_all_but_the_numbers(tmp_path, rng):
    model, unknown = open_model("N", 2, "H", "W"), b"\xfa\x3f\x03abc"  # field 1023
    model.producer_name, model.graph.node[0].doc_string = "someone", "kept"
    model.metadata_props.add(key="a", value="b")
    path, target = tmp_path / "model.onnx", tmp_path / "new.onnx"
    path.write_bytes(model.SerializeToString() + unknown)
    new = rng.standard_normal((2, 2, 3, 3))
    read_onnx(path).write(target, {"v": new})
    old, copy = onnx.load(path), onnx.load(target)
    np.testing.assert_array_equal(to_array(copy.graph.initializer[1]), new)
    for whole in (old, copy):
        whole.graph.initializer[1].ClearField("raw_data")
        assert unknown in whole.SerializeToString()
    assert old == copy


def test_a_copy_is_not_written_over_the_numbers_beside_the_model(tmp_path):
    path, beside = tmp_path / "model.onnx", tmp_path / "beside.onnx"
    options = {"location": beside.name, "size_threshold": 0}
    onnx.save(conv_model(), path, save_as_external_data=True, **options)
    before = beside.read_bytes()
    with pytest.raises(ValueError, match=r"no file that the model needs, got .*beside"):
        read_onnx(path, None).write(beside, {"w": WEIGHT})
    assert beside.read_bytes() == before


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("w", WEIGHT[:1], r"must keep shape \(2, 2, 3\) and dtype float64, got \(1"),
        ("w", WEIGHT.astype("f"), r"and dtype float64, got \(2, 2, 3\) and float32"),
        ("w", np.full((2, 2, 3), np.inf), "must stay finite"),
        ("v", WEIGHT, "'v' must be a kernel of the file"),
    ],
)
def test_other_numbers_are_not_written(tmp_path, name, array, message):
    network = reads(conv_model(), tmp_path)
    with pytest.raises(ValueError, match=message):
        network.write(tmp_path / "new.onnx", {name: array})
    assert not (tmp_path / "new.onnx").exists()


def test_onnx_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match=r"install 'convspectra\[onnx\]'"):
        read_onnx(tmp_path / "model.onnx")


def test_ultraface_is_the_same_network_in_two_formats(torch):
    state = torch.load(real_data("ultraface_RFB-320.pth"), "cpu", weights_only=True)
    network = read_onnx(real_data("ultraface_RFB-320.onnx"))
    kernels = {kernel.name: kernel for kernel in network.kernels}
    assert network.skipped == ()
    assert set(kernels) == {name for name, array in state.items() if array.ndim == 4}
    for name, kernel in kernels.items():
        np.testing.assert_array_equal(kernel.load(), state[name].numpy())
        if kernel.factors is not None:
            *block, layer, _ = name.split(".")
            norm = ".".join([*block, "bn" if layer == "conv" else f"{int(layer) + 1}"])
            gamma, variance = state[f"{norm}.weight"], state[f"{norm}.running_var"]
            want = gamma.double() / (variance.double() + 1e-5).sqrt()
            np.testing.assert_allclose(kernel.factors(), want.numpy(), rtol=1e-6)
    assert kernels["base_net.0.0.weight"].stated["grid"] == (240, 320)
    assert max(max(k.stated["dilation"]) for k in network.kernels) > 1


def test_weights_in_constant_nodes(tmp_path):
    path, target = real_data("ppocr_v2_cls_mobilenetv3.onnx"), tmp_path / "new.onnx"
    network = read_onnx(path, (1, 3, 48, 192))
    assert (len(network.kernels), network.skipped) == (54, ())
    assert network.kernels[0].stated["grid"] == (48, 192)
    assert network.kernels[2].stated["stride"] == (2, 1)
    assert network.kernels[-1].linear
    kernel = network.kernels[5]
    network.write(target, {kernel.name: 0 * kernel.load()})
    models = [onnx.load(path), onnx.load(target)]
    x = {"x": np.ones((1, 3, 48, 32), "float32")}
    (before,), (after,) = (Evaluator(model).run(None, x) for model in models)
    assert not np.allclose(before, after)
    old, new = (
        next(node for node in model.graph.node if kernel.name in node.output)
        for model in models
    )
    assert not to_array(new.attribute[0].t).any()
    new.attribute[0].t.CopyFrom(old.attribute[0].t)
    assert models[0] == models[1]


def test_transposed_layers_of_a_real_network():
    network = read_onnx(real_data("ppocr_v4_det.onnx"), (1, 3, 320, 320))
    assert (len(network.kernels), network.skipped) == (64, ())
    found = [kernel for kernel in network.kernels if kernel.stated["transposed"]]
    assert [kernel.stated["grid"] for kernel in found] == [(80, 80), (160, 160)]
    assert {kernel.stated["stride"] for kernel in found} == {(2, 2)}


def test_one_weight_on_many_grids():
    network = read_onnx(real_data("basic_pitch_nmp.onnx"))
    assert (len(network.kernels), network.skipped) == (32, ())
    assert len({kernel.name for kernel in network.kernels}) == 32
    assert ((1, 1), (19, 19)) in {k.stated["padding"] for k in network.kernels}
    assert (1, 3) in {kernel.stated["stride"] for kernel in network.kernels}


# What to do, and what to call it


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (
            ["N", 2, "H"],
            "is N x 2 x H with N, H free: pass --input, for example --input 1x2x224.",
        ),
        ([None, None, None], "is N x C x size 2 with N, C, size 2 free"),
        (None, "does not say how many axes its input 'x' has"),
    ],
)
def test_open_sizes_are_said_with_an_example(tmp_path, shape, said):
    node = make_node("Conv", ["x", "w"], ["y"])
    model = model_of([node], [stored("w", WEIGHT)], [value("x", shape)])
    (advice,) = reads(model, tmp_path).advice
    assert said in advice
    assert reads(model, tmp_path, (1, 2, 9)).advice == ()


def test_the_example_for_an_input_of_two_axes_is_a_signal(tmp_path):
    nodes = [
        make_node("Unsqueeze", ["x", "1"], ["a"]),
        make_node("Conv", ["a", "w"], ["y"], strides=[64]),
    ]
    tensors = [stored("w", np.ones((2, 1, 128))), stored("1", np.array([1]))]
    model = model_of(nodes, tensors, [value("x", [2, None])])
    (advice,) = reads(model, tmp_path).advice
    assert "is 2 x size 1 with size 1 free: pass --input" in advice
    assert "--input 2x16000." in advice
    assert grids(reads(model, tmp_path, (2, 16000))) == [(16000,)]


def test_a_layer_with_a_numbered_weight_is_called_after_its_node(tmp_path):
    names = {
        ("2228", "/layer1/conv/Conv"): "layer1/conv",
        ("onnx::Conv_12", "/stem/Conv"): "stem",
        ("7", ""): "y2",
        ("block.3.weight", "/block/Conv"): "block.3.weight",
    }
    nodes = [
        make_node("Conv", [f"y{i - 1}" if i else "x", weight], [f"y{i}"], node)
        for i, (weight, node) in enumerate(names)
    ]
    tensors = [stored(weight, np.ones((2, 2, 1))) for weight, _ in names]
    model = model_of(nodes, tensors, [value("x", [1, 2, 5])])
    assert [x.name for x in reads(model, tmp_path).kernels] == list(names.values())
