"""Small ONNX models, and what the reader says of them."""

import numpy as np
from optional import needed

from convspectra._checkpoint.onnx_file import read_onnx

onnx = needed("onnx")
Tensor, make_node = onnx.TensorProto, onnx.helper.make_node
to_array = onnx.numpy_helper.to_array
WEIGHT = np.arange(12.0).reshape(2, 2, 3)


def value(name, shape=None, kind=Tensor.DOUBLE):
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def stored(name, array):
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def model_of(nodes, tensors, inputs=("x",), outputs=("y",), **more):
    """A model; inputs and outputs are names, or what `value` gives."""
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [value(i) if isinstance(i, str) else i for i in inputs],
        [value(o) if isinstance(o, str) else o for o in outputs],
        tensors,
    )
    domains = {"": 21, "mine": 1}
    opsets = [onnx.helper.make_opsetid(*domain) for domain in domains.items()]
    return onnx.helper.make_model(graph, ir_version=10, opset_imports=opsets, **more)


def conv_model(weight=WEIGHT, grid=(5,), op="Conv", name="w", **attributes):
    """One convolution, from x to y."""
    channels = weight.shape[1] * attributes.get("group", 1)
    channels = weight.shape[0] if op == "ConvTranspose" else channels
    node = make_node(op, ["x", name], ["y"], "node", **attributes)
    x = value("x", ["N", channels, *grid])
    return model_of([node], [stored(name, weight)], [x])


def reading(*nodes, tensors=(), op="Conv"):
    """A model whose layer reads w, which nodes and tensors may define."""
    return model_of([*nodes, make_node(op, ["x", "w"], ["y"])], tensors)


def reads(model, tmp_path, sizes=None):
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return read_onnx(path, sizes)


def only(network):
    assert network.skipped == ()
    (kernel,) = network.kernels
    return kernel


def reason(network):
    assert network.kernels == ()
    ((_, why),) = network.skipped
    return why


def grids(network):
    return [kernel.stated.get("grid") for kernel in network.kernels]
