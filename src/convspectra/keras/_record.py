"""Which kernels a Keras model has, and which input sizes they see."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import keras
import numpy as np

from .._arrays.array import is_tensorflow_array, to_numpy
from .._checkpoint.keras_config import Described, to_layer
from .._layer.geometry import Geometry

BatchNorm = keras.layers.BatchNormalization
FIRST = "channels_first"
NO_GRAPH = "it is in no graph of layers, which would say what comes before it"
HIDDEN = "it comes after a layer that consists of others, and may go with one of them"


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One kernel of a layer, at one geometry."""

    name: str  # as in a file of the model
    layer: keras.layers.Layer
    weight: str  # the attribute of the layer that holds the kernel
    role: str  # of what it is the kernel, which says how it lies in memory
    geometry: Geometry
    batch_norm: BatchNorm | None = None  # what the output goes into

    @property
    def variable(self) -> keras.Variable | None:
        """The variable that holds the kernel, None if the kernel is computed."""
        found = getattr(self.layer, self.weight)
        return found if isinstance(found, keras.Variable) else None

    @property
    def kernel(self) -> np.ndarray:
        """The numbers in effect, in the layout of `Layer`."""
        found = numbers_of(getattr(self.layer, self.weight))
        return np.array(to_layer(self.role, found), order="C")


def numbers_of(weight: Any) -> np.ndarray:
    """The numbers of a variable or a tensor."""
    value: Any = weight.value if isinstance(weight, keras.Variable) else weight
    if is_tensorflow_array(value):  # whom Keras asks in a way that NumPy 2 warns of
        return to_numpy(value)
    return np.asarray(keras.ops.convert_to_numpy(value))


def batch_norm_gain(norm: BatchNorm) -> np.ndarray:
    """What a BatchNormalization multiplies each channel with, once it is trained."""
    gain = 1 / np.sqrt(numbers_of(norm.moving_variance) + norm.epsilon)
    return gain * numbers_of(norm.gamma) if norm.scale else gain


def check_is_built(model: Any) -> None:
    """Refuse what is no model of Keras, or has no weights yet."""
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(
            f"`model` must be a model or a layer of Keras, got {type(model).__name__}."
        )
    if not model.built:
        raise ValueError(
            f"The model {model.name!r} must be built, and has no weights yet. Call it "
            "once, or state its input: `model.build((None, 32, 32, 3))`."
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A use, and what reads its output: BatchNorms to fold, None for all else."""

    use: Use
    readers: dict[BatchNorm | None, None] = field(default_factory=dict)


class Recorder:
    """The uses of a model's kernels, and the reasons why other layers have none.

    Attributes
    ----------
    skipped : dict of str to str
        The names of layers whose kernels are left out, and the reasons.
    not_folded : dict of str to str
        With `batch_norms`, the names of those BatchNorms of which nobody knows whether
        they come right after a kernel, and the reasons.
    """

    def __init__(self, model: keras.layers.Layer, *, batch_norms: bool) -> None:
        self.batch_norms = batch_norms
        self._seen: list[_Seen] = []
        self._owners: dict[str, keras.layers.Layer] = {}
        self.skipped: dict[str, str] = {}
        self.not_folded: dict[str, str] = {}
        # What is seen by the outputs that it makes, None if another layer hides it. The
        # outputs are kept: their ids must not be given to others.
        self._makers: dict[int, tuple[Any, _Seen | None]] = {}
        graph = graph_of(model)
        if graph is None:
            self._note_built(model, ())
        else:
            self._note_read(self._follow(graph, graph.inputs, ()))

    @property
    def uses(self) -> list[Use]:
        """In the order of execution; what is used at one size several times, once."""
        each = [
            replace(seen.use, batch_norm=norm)
            for seen in self._seen
            for norm in seen.readers or (None,)
        ]
        distinct = {(u.name, u.geometry, u.batch_norm): u for u in each}
        return list(distinct.values())

    def _follow(self, graph: Any, inputs: Any, names: tuple[str, ...]) -> Any:
        """Follow the shapes through a graph of layers, as Keras itself does."""
        return graph._run_through_graph(
            inputs, operation_fn=lambda op: partial(self._pass_through, op, names)
        )

    def _pass_through(
        self, op: Any, names: tuple[str, ...], *args: Any, **kwargs: Any
    ) -> Any:
        """What comes out of an operation of a graph."""
        names = (*names, op.name)
        first = args[0] if args else next(iter(kwargs.values()), None)
        inner = graph_of(op)
        if inner is not None:
            return self._follow(inner, first, names)
        outputs = op.compute_output_spec(*args, **kwargs)
        if isinstance(op, BatchNorm):
            self._note_batch_norm(op, names, first)
            return outputs
        self._note_read((args, kwargs))
        if isinstance(op, keras.layers.Layer):
            before = len(self._seen)
            are_noted = self._note(op, names, getattr(first, "shape", None))
            if not are_noted:
                self._note_inside(op, names)
                if len(self._seen) > before:
                    self._makers[id(outputs)] = outputs, None
            elif are_noted[-1] and _is_linear(op):
                self._makers[id(outputs)] = outputs, self._seen[-1]
        return outputs

    def _note_built(self, layer: keras.layers.Layer, names: tuple[str, ...]) -> None:
        """Note a layer at the size that it was built for, as no graph says more."""
        graph = graph_of(layer)
        if graph is not None:
            self._note_read(self._follow(graph, graph.inputs, names))
            return
        if isinstance(layer, BatchNorm) and self.batch_norms:
            self.not_folded["/".join(names or (layer.name,))] = NO_GRAPH
        built = layer.get_build_config() or {}
        if not self._note(layer, names or (layer.name,), built.get("input_shape")):
            self._note_inside(layer, names)

    def _note_inside(self, layer: keras.layers.Layer, names: tuple[str, ...]) -> None:
        """Note the layers of which one that is not known consists."""
        inside = layer._flatten_layers(include_self=False, recursive=False)
        for one in inside:
            self._note_built(one, (*names, one.name))
        # A wrapper may refer to the kernel of what it wraps.
        theirs = {id(v) for one in inside for v in one.variables}
        own = [v for v in layer._trainable_variables if id(v) not in theirs]
        large = any(len(v.shape) > 2 for v in own)
        if large or (not inside and "conv" in type(layer).__name__.lower()):
            kind = type(layer).__name__
            why = f"a {kind} is not a layer whose geometry is known"
            self.skipped["/".join(names or (layer.name,))] = why

    def _note(
        self, layer: keras.layers.Layer, names: tuple[str, ...], shape: Any
    ) -> list[bool]:
        """Note the kernels of a layer, and say of each whether it is a use.

        A layer of an unknown kind has none.
        """
        are_noted: list[bool] = []
        described = described_of(layer, names, shape)
        roles, path = described.roles(), self._path_of(layer, names)
        for weight, role in roles.items():
            name = f"{path}/{weight}"
            try:
                kernel = getattr(layer, weight)
                _check_dtype(keras.backend.standardize_dtype(kernel.dtype))
                stated = described.geometry(role, tuple(kernel.shape))
                geometry = Geometry(**{"grid": None, **stated})
                geometry = geometry.broadcast_to(max(len(kernel.shape) - 2, 1))
            except (AttributeError, ValueError, TypeError) as error:
                self.skipped[name] = f"{error}".rstrip(".")
                are_noted.append(False)
                continue
            self._seen.append(_Seen(Use(name, layer, weight, role, geometry)))
            are_noted.append(True)
        return are_noted

    def _path_of(self, layer: keras.layers.Layer, names: tuple[str, ...]) -> str:
        """The names of a layer and the models that it is in, unlike all others."""
        path = name = "/".join(names)
        number = 1
        while self._owners.setdefault(path, layer) is not layer:
            number += 1
            path = f"{name}#{number}"
        return path

    def _note_read(self, values: Any) -> None:
        """Note what is read by anything but a BatchNorm that is folded."""
        for x in keras.tree.flatten(values):
            _, seen = self._makers.get(id(x), (None, None))
            if seen is not None:
                seen.readers[None] = None

    def _note_batch_norm(self, norm: BatchNorm, names: tuple[str, ...], x: Any) -> None:
        if not self.batch_norms or id(x) not in self._makers:
            return
        _, seen = self._makers[id(x)]
        if seen is None:
            self.not_folded["/".join(names)] = HIDDEN
            return
        first = seen.use.layer.get_config().get("data_format") == FIRST
        channels = 1 if first else -1
        is_folded = norm.axis in (channels, channels % len(x.shape))
        seen.readers[norm if is_folded else None] = None


def described_of(
    layer: keras.layers.Layer, names: tuple[str, ...], shape: Sequence[Any] | None
) -> Described:
    """A layer as its configuration in a file describes it, on inputs of this shape."""
    kind, own = type(layer), type(layer).__module__.startswith("keras.")
    if not own:
        return Described(names, "", "", {}, None)
    config = layer.get_config()
    listed = {k: list(v) if isinstance(v, tuple) else v for k, v in config.items()}
    return Described(names, "", kind.__name__, listed, shape)


def graph_of(op: Any) -> Any:
    """The graph of layers that a model consists of, None if it has none."""
    if isinstance(op, keras.Sequential):
        return op._functional
    is_graph = isinstance(op, keras.Model) and hasattr(op, "_run_through_graph")
    return op if is_graph else None


def _check_dtype(dtype: str) -> None:
    """Refuse what a quantized layer has for a kernel."""
    if "float" not in dtype:
        raise TypeError(f"its numbers are {dtype}, which stand for others")


def _is_linear(layer: keras.layers.Layer) -> bool:
    """Whether nothing comes between the kernel and the output."""
    return getattr(layer, "activation", None) in (None, keras.activations.linear)
