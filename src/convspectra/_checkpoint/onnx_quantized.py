"""The weights of ONNX operators on integers, scaled back to what they stand for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .onnx_scopes import Scope
from .onnx_tensors import standard
from .onnx_weights import FLOATS, Stored, scaled_back


@dataclass(frozen=True, slots=True)
class Operands:
    """Which inputs of an operator make up its weight.

    Attributes
    ----------
    weight, zero : int
        The integers, and the one among them that stands for 0.
    axis : int
        Of the weight, along which there may be several scales.
    scale : int, optional
        The number that one step stands for; by default it comes after the operator.
    """

    weight: int
    zero: int
    axis: int
    scale: int | None = None


QUANTIZED = {
    "QLinearConv": Operands(weight=3, scale=4, zero=5, axis=0),
    "QLinearMatMul": Operands(weight=3, scale=4, zero=5, axis=-1),
    "ConvInteger": Operands(weight=1, zero=3, axis=0),
    "MatMulInteger": Operands(weight=1, zero=3, axis=-1),
}


def quantized_weight(
    node: Any,
    scope: Scope,
    readers: Mapping[str, list[Any]],
    makers: Mapping[str, Any],
) -> Stored:
    """The weight of one of `QUANTIZED`.

    `readers` and `makers` are the nodes of the graph that read and give each array.
    """
    operands = QUANTIZED[node.op_type]
    inputs = dict(enumerate(node.input))
    weight = scope.value(inputs.get(operands.weight, ""))
    if isinstance(weight, str):
        raise ValueError(f"its weight {weight}")
    if operands.scale is None:
        scale = _scale_after(node, scope, readers, makers)
    else:
        scale = scope.value(inputs.get(operands.scale, ""))
    zero = inputs.get(operands.zero)
    found = scaled_back(
        weight, scale, scope.value(zero) if zero else None, operands.axis
    )
    if isinstance(found, str):
        raise ValueError(f"its weight {found or 'is quantized in an unknown way'}")
    return found


def _scale_after(
    node: Any,
    scope: Scope,
    readers: Mapping[str, list[Any]],
    makers: Mapping[str, Any],
) -> Stored | str:
    """The scale of a weight whose products with integers are scaled back together.

    As onnxruntime's dynamic quantization has it: the integers are cast and multiplied
    with the product of the scale of the input, which is computed, and of the weight.
    Older versions add the bias first, as integers.
    """
    biased = _only_reader(node, "Add", readers) or node
    cast = _only_reader(biased, "Cast", readers)
    times = cast and _only_reader(cast, "Mul", readers)
    if not times:
        return ""
    (both,) = [name for name in times.input if name != cast.output[0]] or [""]
    maker = makers.get(both)
    if maker is not None and maker.op_type == "Reshape":
        maker = makers.get(maker.input[0])
    if maker is None or maker.op_type != "Mul" or not standard(maker):
        return ""
    found = [scope.value(name) for name in maker.input]
    scales = [scale for scale in found if isinstance(scale, Stored)]
    if len(scales) != 1 or scales[0].dtype not in FLOATS:
        return ""
    (scale,) = scales
    count = math.prod(scale.shape)
    return replace(
        scale,
        shape=(count,),
        axes=(0,),
        values=lambda: scale.load().reshape(count),
    )


def _only_reader(node: Any, op: str, readers: Mapping[str, list[Any]]) -> Any:
    """The one node that reads what another gives, if it is such an operator."""
    found = readers.get(node.output[0], [])
    if len(found) != 1 or found[0] is None or found[0].op_type != op:
        return None
    return found[0] if standard(found[0]) else None
