"""Between which bounds does the Lipschitz constant of a whole model lie?"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx.node import Node as Step

from .._base import fraction
from .._network.bounds import LipschitzBounds
from .._network.compose import compose
from .._network.node import Node
from ._modules import check_has_numbers, unwrapped
from ._operators import Call, Value, effect
from ._program import (
    Program,
    arguments,
    computed,
    in_double,
    is_random,
    is_real,
    overload,
)
from ._quotient import largest_quotient
from ._record import undisturbed

JUMPS = "its result is not real, and jumps where the input changes smoothly"
RANDOM = "it is random"


def lipschitz(
    model: nn.Module,
    *example: Any,
    rtol: float = 1e-3,
    budget: float | None = None,
    **keywords: Any,
) -> LipschitzBounds:
    """Bound the Lipschitz constant of a model from below and above.

    That is the largest |f(x) - f(y)| / |x - y| over all inputs of the example's size,
    in Euclidean norms, where f is the model in evaluation mode and in exact arithmetic:
    rounding, also to a lower precision, is left out. The model is traced by
    `torch.export`, and left unchanged.

    Parameters
    ----------
    model : torch.nn.Module
    *example, **keywords
        The arguments that the model is called with. Arrays of real numbers are its
        input; all else is taken as constant.
    rtol : float
        Relative gap of the norms of layers; see `operator_norm`.
    budget : float, optional
        Seconds that the norm of a layer may take; see `operator_norm`.

    Returns
    -------
    LipschitzBounds
        The upper bound multiplies and adds those of all operators, from the input to
        the output: certified norms of convolutions and matrices, with a BatchNorm after
        them folded in, and the steepest slopes of all else. It grows with depth, and is
        usually far above the constant itself. The lower bound is
        |f(x) - f(y)| / |x - y| for the example x and an input y near it, found by power
        iteration and computed in double precision. An operator without a bound, such as
        a product of two arrays that depend on the input, is in `unknown`, and the upper
        bound is infinite.

        A part's `method` is that of `operator_norm` for layers, and else what its norm
        follows from: "slope" (of a function), "factor" and "largest factor" (of a
        product with constants), "weights" (of a mean), "repeats" (of entries),
        "windows" (of a pool, which share entries), "1 / sqrt(eps)" (of a
        normalization), "sum" and "stack" (of arrays that are joined).

    Raises
    ------
    ValueError
        If the model can't be traced, or has no input of real numbers.
    """
    rtol = fraction("rtol", rtol)
    model = unwrapped(model)
    check_has_numbers(model)
    with torch.inference_mode(False), undisturbed(model):
        program = Program(model, example, keywords)
        if not program.inputs:
            raise ValueError(
                "The example must hold an array of real numbers, got none: nothing "
                "that the model reads can change smoothly."
            )
        graph = Graph(program)
        found = compose(graph.nodes, graph.outputs, rtol, budget)
        lower = largest_quotient(program, graph.constants)
    if lower > found.upper:
        raise ArithmeticError(
            f"The lower bound must not exceed the upper one, got {lower} and "
            f"{found.upper}. This is a defect of convspectra: please report it."
        )
    method = f"{found.method}; two inputs near the example"
    return replace(found, lower=lower, method=method)


class Graph:
    """The operations of a model that depend on its input.

    All others are carried out, as weights may be computed from parameters.

    Attributes
    ----------
    nodes, outputs : list of Node
        The operations, and those of them that are the model's results.
    constants : dict
        The results of all other steps.
    """

    def __init__(self, program: Program) -> None:
        self.constants = dict(program.given)
        self.nodes: list[Node] = []
        self._values: dict[Step, Value] = {}
        self._names: set[str] = set()
        for step in program.inputs:
            del self.constants[step]
            self._add(step, "input")
        for step in program.calls():
            given = arguments(step, {**self.constants, **self._values})
            call = Call(given, _shape(step), lambda s=step, **x: computed(s, x))
            if is_random(step):
                sources = tuple((value.node, 1.0) for value in call.values)
                self._add(step, sources=sources, gain=None, why=RANDOM)
            elif not call.values:
                self.constants[step] = in_double(computed(step, given))
            elif not _is_smooth(step):
                self._add(step, **effect("", call) | {"why": JUMPS})
            else:
                self._add(step, **effect(overload(step), call))
        found = (self._values.get(step) for step in program.outputs)
        self.outputs = [value.node for value in found if value is not None]

    def _add(self, step: Step, operator: str = "", **attributes: Any) -> None:
        name = _name(step)
        while name in self._names:
            name += "'"
        self._names.add(name)
        node = Node(name, operator or _short(step), **attributes)
        self.nodes.append(node)
        self._values[step] = Value(node, _shape(step))


def _is_smooth(step: Step) -> bool:
    """Whether a step's result is real; of several, those who take one out are asked."""
    result = step.meta["val"]
    return isinstance(result, (list, tuple)) or is_real(result)


def _shape(step: Step) -> tuple[int, ...]:
    """The sizes of a step's result; none if that is several arrays."""
    return tuple(map(int, getattr(step.meta["val"], "shape", ())))


def _short(step: Step) -> str:
    """The name of a step's operator, as people know it."""
    name = overload(step).removeprefix("aten.").partition(".")[0]
    return "batch_norm" if "batch_norm_legit" in name else name


def _name(step: Step) -> str:
    """The module that a step is in; with its own name where that is not PyTorch's."""
    if step.op == "placeholder":
        return step.name
    stack = list(step.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "")
    if str(kind).startswith("torch.nn.modules"):
        return path or step.name
    return f"{path}.{step.name}".lstrip(".")
