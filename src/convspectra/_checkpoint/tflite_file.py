"""Kernels of TensorFlow Lite models, by the operators of their graphs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .flatbuffer import Table, root
from .records import Kernel, Network, names_layer
from .stored import Entry, Patch, Refusal, check_size, parsing, write_patched
from .tflite_geometry import LAYOUTS, UNREAD, Axes, Blocks, geometry, grid_of, pairs
from .tflite_sparse import Sparsity, sparsity

WHAT = ".tflite file"
LARGEST = 2**32  # bytes: the file is looked at as a whole
MOST_AXES = 8
MOST_NAME = 200  # characters
# Kinds of numbers, and NumPy's strings for their bytes; others are not read.
DTYPES = {
    0: ("float32", "<f4"),
    1: ("float16", "<f2"),
    3: ("uint8", "|u1"),
    7: ("int16", "<i2"),
    9: ("int8", "|i1"),
    10: ("float64", "<f8"),
    18: ("bfloat16", "bfloat16"),
}
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = {2: "i4", 4: "i8"}  # kinds of sizes
DEQUANTIZE, CUSTOM, BATCH_TO_SPACE, SPACE_TO_BATCH, DENSIFY = 6, 32, 37, 38, 124
MOST_SIZES = 16  # numbers of a tensor that states sizes
GENERATED = ("arith.constant", "tfl.pseudo", "")  # names that converters give


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A tensor whose numbers are in the file."""

    entry: Entry
    scale: np.ndarray  # empty if it is not quantized
    zero: np.ndarray
    axis: int  # which has a scale for each of its sites, if there are several
    sparsity: Sparsity | None = None  # where the numbers belong, if some are left out

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape if self.sparsity is None else self.sparsity.shape

    @property
    def is_quantized(self) -> bool:
        return self.entry.dtype not in FLOATS

    def load(self, path: Path) -> np.ndarray:
        with parsing(WHAT), path.open("rb") as stream:
            stream.seek(self.entry.start)
            array = self.entry.read_from(stream)
            if self.sparsity is not None:
                array = self.sparsity.write_out(array)
        if not self.is_quantized:
            return array
        spread = [1] * array.ndim
        if self.scale.size > 1:
            spread[self.axis] = -1
        # In double precision, where the product of int16 and float32 is exact.
        steps = array.astype(np.float64) - self.zero.reshape(spread)
        with np.errstate(all="ignore"):
            scaled = steps * self.scale.reshape(spread).astype(np.float64)
            return scaled.astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """An operator with its weight."""

    name: str
    weight: Stored
    axes: Axes
    stated: dict[str, Any]


class Graph:
    """A graph of the model: its tensors, and the operators in their order."""

    def __init__(self, model: Table, graph: Table) -> None:
        self._data = model.data
        self._buffers, self._codes = model.tables(4), model.tables(1)
        self._tensors = graph.tables(0)
        self.operators = graph.tables(3)
        self._source: dict[int, int] = {}  # what a tensor is made from
        # Inputs of what cuts a grid into sub-grids, by its output, and of what puts it
        # together, by the first of them.
        self._cut: dict[int, np.ndarray] = {}
        self._joined: dict[int, np.ndarray] = {}
        self.skipped: list[tuple[str, str]] = []

    def layers(self) -> Iterator[Layer]:
        """The layers that can be read; `skipped` says why others cannot."""
        for code, inputs, outputs in map(self._parts, self.operators):
            if code in (DEQUANTIZE, DENSIFY) and len(inputs) == len(outputs) == 1:
                self._source[int(outputs[0])] = int(inputs[0])
            elif code == SPACE_TO_BATCH and len(inputs) == 3 and len(outputs) == 1:
                self._cut[int(outputs[0])] = inputs
            elif code == BATCH_TO_SPACE and len(inputs) == 3:
                self._joined[int(inputs[0])] = inputs
        for operator in self.operators:
            code, inputs, outputs = self._parts(operator)
            if code not in LAYOUTS:
                self._note_unread(operator, code, outputs)
                continue
            axes = LAYOUTS[code]
            if len(inputs) <= axes.weight or not len(outputs):
                raise Refusal(f"An operator of a {WHAT} must have its inputs.")
            label = self._name(int(outputs[0])).partition(";")[0]
            try:
                yield self._layer(axes, operator, inputs, outputs, label)
            except Refusal:
                raise
            except (ValueError, TypeError) as error:
                self.skipped.append((label, f"is {axes.kind}: {error}".rstrip(".")))

    def _parts(self, operator: Table) -> tuple[int, np.ndarray, np.ndarray]:
        """The code of an operator, its inputs and its outputs."""
        stated = self._codes[operator.integer(0, "<I")]
        code = max(stated.integer(0, "<b"), stated.integer(3, "<i"))
        return code, operator.numbers(1, "i4"), operator.numbers(2, "i4")

    def _note_unread(self, operator: Table, code: int, outputs: np.ndarray) -> None:
        """Say so if an operator, perhaps of somebody else's making, is a layer."""
        kind = UNREAD.get(code, "")
        if code == CUSTOM:
            custom = self._codes[operator.integer(0, "<I")].text(1, MOST_NAME)
            kind = custom if names_layer(custom) else ""
        if kind and len(outputs):
            why = f"is of type {kind}: this operator is not read"
            self.skipped.append((self._name(int(outputs[0])), why))

    def _layer(
        self,
        axes: Axes,
        operator: Table,
        inputs: np.ndarray,
        outputs: np.ndarray,
        label: str,
    ) -> Layer:
        index = int(inputs[axes.weight])
        for _ in range(2):  # sparse, then dequantized
            index = self._source.get(index, index)
        weight = self._stored(index)
        sizes, out_sizes = (
            self._sizes(int(i)) for i in (inputs[axes.data], outputs[0])
        )
        options = operator.table(4)
        stated = geometry(axes, options, weight.shape, sizes, out_sizes)
        cut = self._cut.get(int(inputs[axes.data]))
        joined = self._joined.get(int(outputs[0]))
        if cut is not None and joined is not None and axes.strides:
            kernel = axes.shape(weight.shape)[2:]
            grid = grid_of(self._sizes(int(cut[0])), len(kernel))
            stated = self._blocks(cut, joined).whole(kernel, stated, grid)
        own = weight.entry.name.partition(";")[0]
        is_generated = any(own.startswith(part) for part in GENERATED if part)
        name = label if is_generated or not own else own
        return Layer(name, weight, axes, stated)

    def _blocks(self, cut: np.ndarray, joined: np.ndarray) -> Blocks:
        block, paddings = (self._integers(int(i)) for i in cut[1:])
        again, crops = (self._integers(int(i)) for i in joined[1:])
        if block != again:
            raise ValueError("it is cut into sub-grids that are not put together")
        return Blocks(block, pairs(paddings), pairs(crops))

    def _integers(self, index: int) -> tuple[int, ...]:
        """The numbers of a tensor that states sizes."""
        tensor = self._tensor(index)
        kind = INTEGERS.get(tensor.integer(1, "<b"))
        start, size = self._buffer(tensor.integer(2, "<I"))
        if kind is None or not 0 < size <= MOST_SIZES * np.dtype(kind).itemsize:
            raise ValueError("its sub-grids are not known")
        data = self._data[start : start + size]
        return tuple(int(n) for n in np.frombuffer(data, f"<{kind}"))

    def _tensor(self, index: int) -> Table:
        return self._tensors[index]

    def _name(self, index: int) -> str:
        return self._tensor(index).text(3, MOST_NAME)

    def _sizes(self, index: int) -> list[int] | None:
        """The sizes of a tensor, 0 for those that are open; None if none is known."""
        tensor = self._tensor(index)
        shape, signature = (tensor.numbers(field, "i4") for field in (0, 7))
        if not 0 < len(shape) <= MOST_AXES:
            return None
        if len(signature) == len(shape):
            shape = np.where(signature < 0, 0, shape)
        return [max(int(n), 0) for n in shape]

    def _stored(self, index: int) -> Stored:
        tensor = self._tensor(index)
        kind = tensor.integer(1, "<b")
        if kind not in DTYPES:
            raise ValueError(f"its weight holds numbers of kind {kind}")
        if tensor.integer(10, "<I"):
            raise ValueError("its weight is in another file")
        dtype, code = DTYPES[kind]
        shape = tuple(int(n) for n in tensor.numbers(0, "i4")[: MOST_AXES + 1])
        if len(shape) > MOST_AXES or min(shape, default=0) < 1:
            raise ValueError(f"its weight has the shape {shape}")
        start, size = self._buffer(tensor.integer(2, "<I"))
        if not size:
            raise ValueError("its weight is not stored")
        name, sparse = self._name(index), tensor.table(6)
        entry = Entry(name, dtype, shape, code, start=start)
        if sparse is None:
            check_size(shape, entry.stored_dtype.itemsize, size)
            return _quantized(entry, tensor.table(4))
        if dtype not in FLOATS:
            raise ValueError("its weight is sparse and quantized")
        places = sparsity(sparse, shape)
        entry = replace(entry, shape=(size // entry.stored_dtype.itemsize,))
        check_size(entry.shape, entry.stored_dtype.itemsize, size)
        return replace(_quantized(entry, None), sparsity=places)

    def _buffer(self, index: int) -> tuple[int, int]:
        """Where a buffer begins in the file, and how many bytes it has."""
        buffer = self._buffers[index]
        start, size = buffer.integer(1, "<Q"), buffer.integer(2, "<Q")
        if start <= 1:  # beyond the first bytes only in files that are too large
            start, size = buffer.vector(0)
        if start + size > len(self._data):
            raise Refusal(f"The buffers of a {WHAT} must lie inside it.")
        return start, size


def _quantized(entry: Entry, stated: Table | None) -> Stored:
    none = np.empty(0)
    if entry.dtype in FLOATS:
        return Stored(entry, none, none, 0)
    if stated is None:
        raise ValueError(f"its weight holds {entry.dtype} without a scale")
    # Not copied: many tensors can have the same.
    scale, zero = stated.numbers(2, "f4"), stated.numbers(3, "i8")
    zero = zero if zero.size else np.zeros(1, np.int64)
    axis = stated.integer(6, "<i")
    several = max(scale.size, zero.size)
    fits = 0 <= axis < len(entry.shape) and several == entry.shape[axis]
    if not scale.size or min(scale.size, zero.size) not in (1, several):
        raise ValueError(f"its weight has {scale.size} scales")
    if several > 1 and not fits:
        raise ValueError(f"its weight has {several} scales along axis {axis}")
    scale, zero = np.broadcast_arrays(scale, zero)
    return Stored(entry, scale, zero, axis)


def read_tflite(path: Path) -> Network:
    """Find the convolutions and matrices of a model, quantized ones scaled back.

    Each has the name of its weight; where the converter has made that up, the name of
    what the layer gives.
    """
    if path.stat().st_size > LARGEST:
        raise Refusal(f"A {WHAT} must have at most {LARGEST} bytes.")
    with parsing(WHAT):
        data = path.read_bytes()
        model = root(data)
        layers: list[Layer] = []
        skipped: list[tuple[str, str]] = []
        left = len(data) // 8  # operators that a file has room for
        for table in model.tables(2):
            graph = Graph(model, table)
            left -= 1 + len(graph.operators)
            if left < 0:
                raise Refusal(f"The operators of a {WHAT} must be different tables.")
            layers += graph.layers()
            skipped += graph.skipped
        named = _named(layers)
        count = Counter(layer.weight.entry.start for layer in named.values())
        kernels = tuple(
            _kernel(path, name, layer, count[layer.weight.entry.start] > 1)
            for name, layer in named.items()
        )
    others = {name: why for name, why in skipped if name not in named}
    return Network(kernels, tuple(others.items()), partial(_copy_with, path, named))


def _named(layers: list[Layer]) -> dict[str, Layer]:
    """Layers that differ, each by a name of its own."""
    distinct: dict[Any, Layer] = {}
    for layer in layers:
        stated = tuple(sorted(layer.stated.items()))
        entry = layer.weight.entry
        distinct.setdefault((entry.name, entry.start, layer.axes, stated), layer)
    named: dict[str, Layer] = {}
    for index, layer in enumerate(distinct.values()):
        name = layer.name or f"layer {index}"
        named[f"{name}@{index}" if name in named else name] = layer
    return named


def _kernel(path: Path, name: str, layer: Layer, shared: bool) -> Kernel:
    weight, reason = layer.weight, ""
    if weight.is_quantized:
        reason = "is quantized"
    elif weight.sparsity is not None:
        reason = "is sparse"
    elif shared:
        reason = "is the weight of several layers"
    shape = layer.axes.shape(weight.shape)
    return Kernel(
        name=name,
        shape=shape,
        dtype="float32" if weight.is_quantized else weight.entry.dtype,
        stated=layer.stated,
        load=lambda: layer.axes.turn(weight.load(path)),
        linear=layer.axes.kind == "FULLY_CONNECTED",
        not_writable_because=reason,
    )


def _copy_with(
    path: Path,
    layers: Mapping[str, Layer],
    target: Path,
    arrays: Mapping[str, np.ndarray],
) -> None:
    patches = []
    for name, array in arrays.items():
        entry = layers[name].weight.entry
        turned = layers[name].axes.turn_back(array, entry.shape)
        patches.append(Patch(entry, entry.to_bytes(turned)))
    write_patched(path, target, patches)
