"""Between which bounds does the Lipschitz constant of a whole model lie?"""

import math
from collections import ChainMap
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx.node import Node as Step

from .._network.bounds import LipschitzBounds
from .._network.compose import compose
from .._network.node import Node
from ._modules import check_has_numbers, unwrapped
from ._operators import Call, Value, effect
from ._program import Program, arguments, computed, in_double, is_real, overload
from ._quotient import computes_the_same, largest_quotient
from ._undisturbed import undisturbed

NOT_REAL = "its result is no array of real numbers"
NO_SIZE = "the size of its result depends on the numbers of the input"
NOT_COMPUTED = "it reads constants alone, and cannot be computed"
RANDOM = "it is random"
DIFFERENT = "what torch.export traced does not compute the same"
NOISE = 1e-6  # how far rounding may raise the lower bound above the upper one


def lipschitz(
    model: nn.Module,
    *example: Any,
    rtol: float = 1e-3,
    budget: float | None = None,
    **keywords: Any,
) -> LipschitzBounds:
    """Bound the Lipschitz constant of a model from below and above.

    That is the largest |f(x) - f(y)| / |x - y| over all inputs of the example's size,
    in Euclidean norms. f is the model with all its modules in evaluation mode, and in
    exact arithmetic: the rounding of what depends on the input is left out, also that
    to a lower precision. The model is traced by `torch.export`, and left unchanged.

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
    ArithmeticError
        If the lower bound exceeds the upper one, as rounding dominates all results.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`model` must be a torch.nn.Module, got {type(model).__name__}."
        )
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
        lower = 0.0
        if not graph.is_random:
            lower = largest_quotient(program, graph.constants)
            if not computes_the_same(program, graph.constants, model):
                unknown = {**found.unknown, type(model).__name__: DIFFERENT}
                return replace(found, upper=math.inf, unknown=unknown)
    if lower > (1 + NOISE) * found.upper:
        raise ArithmeticError(
            f"The lower bound must not exceed the upper one, got {lower} and "
            f"{found.upper}. If rounding does not dominate the model's results, this "
            "is a defect of convspectra: please report it."
        )
    if lower > 0:
        found = replace(found, method=f"{found.method}; two inputs near the example")
    return replace(found, lower=min(lower, found.upper))


class Graph:
    """The operations of a model that depend on its input.

    All others are carried out, as weights may be computed from parameters.

    Attributes
    ----------
    nodes, outputs : list of Node
        The operations, and those of them that are the model's results.
    constants : dict
        The results of all other steps.
    is_random : bool
        Whether some of them draw random numbers.
    """

    def __init__(self, program: Program) -> None:
        self.constants = dict(program.given)
        self.nodes: list[Node] = []
        self.is_random = False
        self._values: dict[Step, Value] = {}
        self._names: set[str] = set()
        for step in program.inputs:
            del self.constants[step]
            self._add(step, "input")
        known = ChainMap[Step, Any](self._values, self.constants)
        for step in program.calls():
            given = arguments(step, known)
            call = Call(overload(step), given, _shape(step), partial(computed, step))
            if program.is_random(step):
                self.is_random = True
                self._add_unknown(step, call, RANDOM)
            elif not call.values:
                self._carry_out(step, call)
            elif not _is_smooth(step):
                self._add_unknown(step, call, NOT_REAL)
            elif None in call.shape:
                self._add_unknown(step, call, NO_SIZE)
            else:
                call = replace(call, given=in_double(step, given))
                self._add(step, **effect(call))
        found = (self._values.get(step) for step in program.outputs)
        self.outputs = [value.node for value in found if value is not None]

    def _carry_out(self, step: Step, call: Call) -> None:
        try:
            self.constants[step] = call.run(call.given)
        except Exception as error:
            why = f"{NOT_COMPUTED}: {str(error).strip().partition(chr(10))[0]}"
            self._add_unknown(step, call, why)

    def _add_unknown(self, step: Step, call: Call, why: str) -> None:
        self._add(step, sources=call.sources, gain=None, why=why)

    def _add(self, step: Step, operator: str = "", **attributes: Any) -> None:
        first, count = _name(step), 0
        name = first
        while name in self._names:
            count += 1
            name = f"{first}@{count}"
        self._names.add(name)
        node = Node(name, operator or _short(step), **attributes)
        self.nodes.append(node)
        self._values[step] = Value(node, _shape(step))


def _is_smooth(step: Step) -> bool:
    """Whether a step's result is real; of several, those who take one out are asked."""
    result = step.meta["val"]
    return isinstance(result, (list, tuple)) or is_real(result)


def _shape(step: Step) -> tuple[Any, ...]:
    """The sizes of a step's result, None for one that is not known before it is run.

    None at all if that is several arrays.
    """
    sizes = getattr(step.meta["val"], "shape", ())
    return tuple(size if isinstance(size, int) else None for size in sizes)


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
    # A convolution's name is for itself, not for the pad before it.
    is_pad = ".conv." in str(kind) and overload(step) == "aten.pad.default"
    if str(kind).startswith("torch.nn.modules") and not is_pad:
        return path or step.name
    return f"{path}.{step.name}".lstrip(".")
