"""Layers on integers, against the reference evaluator."""

import numpy as np
import pytest
from onnx_models import Tensor, make_node, model_of, only, reads, reason, stored, value
from optional import needed

from convspectra import Geometry, dense_matrix

Evaluator = needed("onnx.reference").ReferenceEvaluator
FLOAT = Tensor.FLOAT


def matrix(kernel):
    return dense_matrix(kernel.load(), Geometry(**kernel.stated))


def of_basis(model, shape):
    """The matrix of a model, by showing it a batch of all basis vectors."""
    basis = np.eye(np.prod(shape), dtype="f").reshape(-1, *shape)
    (images,) = Evaluator(model).run(None, {"x": basis})
    return images.reshape(len(basis), -1).T.astype(float)


def scales(count, rng):
    return 2.0 ** rng.integers(-3, 0, count)  # exact in all precisions


@pytest.mark.parametrize("count", [(), (3,)])
def test_qlinearconv_is_that_of_the_reference_evaluator(tmp_path, rng, count):
    tensors = {
        "xs": np.float32(0.5),
        "xz": np.uint8(128),
        "w": rng.integers(-9, 9, (3, 2, 3, 1)).astype("i1"),
        "ws": scales(count, rng).astype("f"),
        "wz": rng.integers(-3, 3, count).astype("i1"),
        "ys": np.float32(2**-4),  # so fine that no output is rounded
        "yz": np.uint8(128),
    }
    nodes = [
        make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        make_node("QLinearConv", ["q", *tensors], ["r"], pads=[1, 0, 0, 0]),
        make_node("DequantizeLinear", ["r", "ys", "yz"], ["y"]),
    ]
    x = value("x", ["N", 2, 6, 1], FLOAT)
    model = model_of(nodes, [stored(n, a) for n, a in tensors.items()], [x])
    kernel = only(reads(model, tmp_path))
    assert kernel.not_writable_because == "is quantized"
    np.testing.assert_array_equal(matrix(kernel), of_basis(model, (2, 6, 1)))


def dynamic(op, weight, scale, zero, reshaped, *, bias=None, **attributes):
    """As onnxruntime quantizes a layer whose input has a scale of its own.

    Older versions add a bias of integers.
    """
    nodes = [
        make_node("DynamicQuantizeLinear", ["x"], ["q", "xs", "xz"]),
        make_node(op, ["q", "w", "xz", "wz"], ["i"], "layer", **attributes),
        make_node("Cast", ["i" if bias is None else "b"], ["f"], to=FLOAT),
        make_node("Mul", ["xs", "ws"], ["flat"]),
        make_node("Reshape", ["flat", "to"], ["both"]),
        make_node("Mul", ["f", "both"], ["y"]),
    ]
    tensors = {"w": weight, "ws": scale, "wz": zero, "to": np.array(reshaped)}
    if bias is not None:
        nodes.insert(2, make_node("Add", ["i", "bias"], ["b"]))
        tensors["bias"] = bias
    shape = ["N", *weight.shape[1:-1], 7] if "Conv" in op else ["N", len(weight)]
    return model_of(
        nodes,
        [stored(name, array) for name, array in tensors.items()],
        [value("x", shape, FLOAT)],
    )


@pytest.mark.parametrize("bias", [None, np.array([[[5], [-7], [2]]], "i4")])
@pytest.mark.parametrize("count", [(), (3,)])
def test_convinteger_is_that_of_the_reference_evaluator(tmp_path, rng, count, bias):
    weight = rng.integers(-50, 50, (3, 2, 3)).astype("i1")
    scale, shape = scales(count, rng).astype("f"), [1, -1, 1]
    plain, biased = (
        dynamic("ConvInteger", weight, scale, np.int8(3), shape, bias=b, pads=[1, 1])
        for b in (None, bias)
    )
    kernel = only(reads(biased, tmp_path))
    want = of_basis(plain, (2, 7))
    np.testing.assert_allclose(matrix(kernel), want, atol=1e-4)


@pytest.mark.parametrize("count", [(), (3,)])
def test_matmulinteger_is_that_of_the_reference_evaluator(tmp_path, rng, count):
    weight = rng.integers(0, 99, (4, 3)).astype("u1")
    scale = scales(count, rng).astype("f")
    model = dynamic("MatMulInteger", weight, scale, np.uint8(40), [1, -1])
    kernel = only(reads(model, tmp_path))
    assert kernel.linear
    np.testing.assert_allclose(matrix(kernel), of_basis(model, (4,)), atol=1e-4)


def test_qlinearmatmul_is_scaled_back_by_column(tmp_path, rng):
    weight, scale = rng.integers(-9, 9, (4, 3)).astype("i1"), scales(3, rng).astype("f")
    tensors = {"xs": np.float32(1), "xz": np.uint8(0), "w": weight, "ws": scale}
    tensors |= {"wz": np.zeros(3, "i1"), "ys": np.float32(1), "yz": np.uint8(0)}
    node = make_node("QLinearMatMul", ["x", *tensors], ["y"])
    model = model_of([node], [stored(n, a) for n, a in tensors.items()])
    kernel = only(reads(model, tmp_path))
    np.testing.assert_array_equal(kernel.load()[..., 0], (weight * scale).T)


@pytest.mark.usefixtures("no_inference")
def test_integers_without_a_scale_are_skipped_with_the_reason(tmp_path):
    node = make_node("ConvInteger", ["x", "w"], ["y"])
    model = model_of([node], [stored("w", np.ones((2, 2, 3), "i1"))])
    why = "its weight is quantized with a scale or a zero point that is not stored"
    assert reason(reads(model, tmp_path)) == f"is of type ConvInteger: {why}"


@pytest.mark.usefixtures("no_inference")
def test_one_weight_with_two_scales_is_two_layers(tmp_path):
    nodes = [
        make_node("DequantizeLinear", ["q", scale], [f"w{scale}"]) for scale in "st"
    ]
    nodes += [make_node("Conv", ["x", f"w{scale}"], [scale * 2]) for scale in "st"]
    tensors = {"q": np.ones((2, 2, 3), "i1"), "s": np.float32(1), "t": np.float32(2)}
    tensors = [stored(name, array) for name, array in tensors.items()]
    kernels = reads(model_of(nodes, tensors), tmp_path).kernels
    assert [kernel.load().max() for kernel in kernels] == [1, 2]
