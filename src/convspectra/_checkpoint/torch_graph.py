"""The graph that torch.export writes as JSON: which operators are layers of what."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .records import LINEAR, names_layer
from .stored import Refusal
from .torch_calls import Pad, arguments_of, convolution, pad_of
from .torch_sizes import sizes_of, symbols_for
from .torch_views import View

OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?")
# A module whose own padding is another operator than its convolution.
CONVOLUTION_MODULE = re.compile(r",torch\.nn\.modules\.conv\.\w+$")
LINEAR_OPERATOR = re.compile(r"(?<![a-z])linear")  # but no bilinear interpolation
TURNS = ("t", "permute", "transpose", "numpy_T")
# The argument that is the weight, of products with matrices.
MATRICES = {"addmm": "mat2", "mm": "mat2", "matmul": "other", "linear": "weight"}
NORMS = ("batch_norm", "_native_batch_norm_legit_no_training")
NOT_READ = "this operator is not read"
MOST_NAME = 200  # characters

Weights = Mapping[str, View | str]


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """What multiplies each channel after a layer."""

    gamma: View | None
    variance: View
    epsilon: float

    def factors(self, path: Path) -> np.ndarray:
        with np.errstate(all="ignore"):
            spread = np.sqrt(self.variance.load(path).astype(float) + self.epsilon)
            gamma = 1.0 if self.gamma is None else self.gamma.load(path).astype(float)
            factors = gamma / spread
        if not np.isfinite(factors).all():
            raise Refusal(
                "A BatchNorm must have a positive variance and finite numbers, got "
                f"others in {self.variance.name!r}."
            )
        return factors


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A convolution or a matrix by a stored weight."""

    label: str
    weight: View
    shape: tuple[int, ...]  # of the kernel
    stated: dict[str, Any]
    linear: bool = False
    turned: bool = False  # its matrix is stored as (in, out)
    norm: BatchNorm | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for calls that are the same layer."""
        stated = tuple(sorted(self.stated.items()))
        return self.weight.name, self.shape, stated, self.turned, self.norm


class Graph:
    """A graph in JSON, gone through node by node: each reads what stands before it."""

    def __init__(self, module: Mapping[str, Any], weights: Weights) -> None:
        graph = module["graph"]
        self.weights = weights
        self.skipped: dict[str, str] = {}
        self._known: dict[str, int] = {}  # values of free sizes
        self._turned: set[str] = set()  # names of transposed matrices
        self._pads: dict[str, tuple[Pad, str | None]] = {}  # and their modules
        self._nodes: list[dict[str, Any]] = graph["nodes"]
        self._metas: dict[str, Any] = graph["tensor_values"]
        self._stored: dict[str, str] = {}  # names in the graph -> names of weights
        self._inputs: list[str] = []
        for spec in module["signature"]["input_specs"]:
            ((kind, found),) = spec.items()
            if kind in ("parameter", "buffer", "tensor_constant"):
                self._stored[found["arg"]["name"]] = found[f"{kind}_name"]
            elif kind == "user_input" and "as_tensor" in found["arg"]:
                self._inputs.append(found["arg"]["as_tensor"]["name"])
        self._readers: dict[str, list[Any]] = {}
        for node in self._nodes:
            for name in _tensors(node["inputs"]):
                self._readers.setdefault(name, []).append(node)
        for output in graph["outputs"]:
            for name in _tensors([{"arg": output}]):
                self._readers.setdefault(name, []).append(None)

    def first_input(self) -> Any:
        """What is stated of the first tensor that the program is called with."""
        if not self._inputs:
            raise ValueError("it has no input that is an array")
        return self._metas[self._inputs[0]]

    def resize(self, sizes: Sequence[int]) -> None:
        """State the sizes of that tensor; ValueError if it cannot have them."""
        self._known = symbols_for(self.first_input(), sizes)

    def calls(self) -> Iterator[Call]:
        """The layers in their order; `skipped` says which others cannot be read."""
        for index, node in enumerate(self._nodes):
            label = str(_output(node) or index)[:MOST_NAME]
            found = OPERATOR.fullmatch(node["target"])
            if any("as_graph" in x["arg"] for x in node["inputs"]):
                self.skipped[label] = "is a graph inside the graph, which is not read"
            elif found is not None and found[1] == "aten":
                try:
                    call = self._call(found[2], node, label)
                except Refusal:
                    raise
                except (ValueError, TypeError) as error:
                    self.skipped[label] = f"is {found[2]}: {error}".rstrip(".")
                else:
                    if call is not None:
                        yield call
            elif found is not None and _is_layer(found[2]):
                self.skipped[label] = f"is {found[1]}.{found[2]}: {NOT_READ}"

    def _call(self, operator: str, node: Any, label: str) -> Call | None:
        """The layer that a node is; None for what is none, and some are noted."""
        arguments = _arguments(node)
        if operator in ("pad", "constant_pad_nd"):
            pad = pad_of(arguments, self._sizes(arguments["self"]))
            if pad is not None:
                self._pads[_output(node)] = pad, _module(node)
        elif operator in TURNS and self._matrix(arguments.get("self")):
            source = arguments["self"]
            self._stored[_output(node)] = self._stored[source]
            if source not in self._turned:
                self._turned.add(_output(node))
        elif operator in MATRICES:
            return self._linear(operator, arguments.get(MATRICES[operator]), label)
        elif arguments_of(operator) is not None:
            weight, source = self._weight(arguments.get("weight")), arguments["input"]
            pad, module = self._pads.get(source, (None, None))
            if module is None or module != _module(node):
                pad = None  # of another module: the layer reads what that gives
            sizes = self._sizes(source)
            stated = convolution(operator, arguments, weight.shape, sizes, pad)
            taps = weight.shape
            out = taps[1] * stated["groups"] if stated["transposed"] else taps[0]
            return Call(label, weight, taps, stated, norm=self._norm(node, out))
        elif _is_layer(operator):
            raise ValueError(NOT_READ)
        return None

    def _linear(self, operator: str, source: Any, label: str) -> Call | None:
        """A product with a stored matrix."""
        weight = self._matrix(source)
        if weight is None:
            if operator == "linear":
                raise ValueError("its weight is not stored as a matrix")
            return None
        columns = (operator != "linear") == (source not in self._turned)
        shape = weight.shape[::-1] if columns else weight.shape
        return Call(label, weight, (*shape, 1), LINEAR, linear=True, turned=columns)

    def _sizes(self, name: Any) -> list[int] | None:
        return sizes_of(self._metas.get(name), self._known)

    def _stored_as(self, name: Any) -> View | str | None:
        """What a name of the graph is stored as, or why not; None if it is computed."""
        stored = self._stored.get(name) if isinstance(name, str) else None
        found = None if stored is None else self.weights.get(stored)
        if isinstance(found, View) and found.unsuitable:
            return found.unsuitable
        return found

    def _weight(self, name: Any) -> View:
        found = self._stored_as(name)
        if not isinstance(found, View):
            raise ValueError(f"its weight {found or 'is computed by the program'}")
        return found

    def _matrix(self, name: Any) -> View | None:
        """A stored matrix, None for anything else."""
        found = self._stored_as(name)
        return found if isinstance(found, View) and len(found.shape) == 2 else None

    def _norm(self, node: Any, channels: int) -> BatchNorm | None:
        """The BatchNorm that alone reads what a node gives."""
        after = self._readers.get(_output(node), [])
        if len(after) != 1 or after[0] is None:
            return None
        found = OPERATOR.fullmatch(after[0]["target"])
        stated = _arguments(after[0])
        if not found or found[1] != "aten" or found[2] not in NORMS:
            return None
        if stated.get("training") or stated.get("input") != _output(node):
            return None
        gamma = self._stored_as(stated.get("weight"))
        variance = self._stored_as(stated.get("running_var"))
        if not isinstance(variance, View) or variance.shape != (channels,):
            return None
        if stated.get("weight") is None:
            return BatchNorm(None, variance, float(stated["eps"]))
        if not isinstance(gamma, View) or gamma.shape != (channels,):
            return None
        return BatchNorm(gamma, variance, float(stated["eps"]))


def _arguments(node: Any) -> dict[str, Any]:
    return {item["name"]: _value(item["arg"]) for item in node["inputs"]}


def _is_layer(operator: str) -> bool:
    """Whether an operator of this name is a layer, one that can be read or not."""
    return names_layer(operator) or LINEAR_OPERATOR.search(operator) is not None


def _output(node: Any) -> str:
    """The name of the first tensor that a node gives, empty if it gives none."""
    return (*_tensors([{"arg": each} for each in node["outputs"]]), "")[0]


def _tensors(inputs: list[Any]) -> list[str]:
    """The names of the tensors among arguments."""
    found: list[str] = []
    for item in inputs:
        ((kind, value),) = item["arg"].items()
        if kind == "as_tensor":
            found.append(value["name"])
        elif kind == "as_tensors":
            found += [tensor["name"] for tensor in value]
        elif kind in ("as_optional_tensor", "as_optional_tensors"):
            each = value if isinstance(value, list) else [value]
            found += [x["as_tensor"]["name"] for x in each if "as_tensor" in x]
    return found


def _value(argument: Mapping[str, Any]) -> Any:
    """What an argument is: a number, numbers, a text, or the name of a tensor."""
    ((kind, value),) = argument.items()
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return value["name"]
    if kind == "as_optional_tensor":
        return value["as_tensor"]["name"] if "as_tensor" in value else None
    if kind == "as_sym_int":
        return value.get("as_int", "a free size")
    if kind == "as_sym_ints":
        return [x.get("as_int", "a free size") for x in value]
    return value


def _module(node: Any) -> str | None:
    """Which module of PyTorch's a node is computed in, None if it is none of these."""
    stack = (node.get("metadata") or {}).get("nn_module_stack")
    is_layer = isinstance(stack, str) and CONVOLUTION_MODULE.search(stack)
    return stack if is_layer else None
