"""Between which bounds does the Lipschitz constant of a whole model lie?"""

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx.node import map_arg

from .._base import fraction
from .._network.bounds import LipschitzBounds
from .._network.compose import compose
from .._network.node import Node
from ._modules import check_has_numbers, unwrapped
from ._operators import Call, Value, effect
from ._program import Program, is_real
from ._quotient import largest_quotient
from ._record import undisturbed

JUMPS = "its output is not real, and jumps where the input changes smoothly"


def lipschitz(
    model: nn.Module, *example: Any, rtol: float = 1e-3, **keywords: Any
) -> LipschitzBounds:
    """Bound the Lipschitz constant of a model from below and above.

    That is the largest |f(x) - f(y)| / |x - y| over all inputs of the example's size,
    in Euclidean norms, with the model in evaluation mode. The model is traced by
    `torch.export`, and left unchanged.

    Parameters
    ----------
    model : torch.nn.Module
    *example, **keywords
        The arguments that the model is called with. Arrays of real numbers are its
        input; all else is taken as constant.
    rtol : float
        Relative gap of the norms of layers; see `operator_norm`.

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
    with undisturbed(model):
        program = Program(model, example, keywords)
        if not program.inputs:
            raise ValueError(
                "The example must hold an array of real numbers, got none: nothing "
                "that the model reads can change smoothly."
            )
        found = compose(*_nodes(program), rtol)
        lower = largest_quotient(program)
    method = f"{found.method}; two inputs near the example"
    return replace(found, lower=lower, method=method)


def _nodes(program: Program) -> tuple[list[Node], list[Node]]:
    """The operations that depend on the input, and those that are the output.

    All others are carried out: weights may be computed from parameters.
    """
    known: dict[Any, Any] = {}  # steps of the graph: constants, or what `Value` says
    nodes: list[Node] = []
    names: set[str] = set()
    places = iter(range(len(program.given)))

    def add(step: Any, **attributes: Any) -> None:
        name = _name(step)
        while name in names:
            name += "'"
        names.add(name)
        nodes.append(Node(name, _operator(step), **attributes))
        known[step] = Value(nodes[-1], _shape(step))

    for step in program.graph.nodes:
        if step.op == "placeholder":
            place = next(places)
            known[step] = program.given[place]
            if place in program.inputs:
                add(step)
        elif step.op == "output":
            results = [known.get(result) for result in step.args[0]]
            ends = [results[place] for place in program.outputs]
            return nodes, [end.node for end in ends if isinstance(end, Value)]
        elif step.op == "get_attr":
            known[step] = getattr(program.graph.owning_module, step.target)
        elif "val" in step.meta:  # what has no result is an assertion
            call = _call(step, known)
            if call.values:
                add(step, **_effect(step, call))
            else:
                known[step] = call.run()
    raise AssertionError("a graph has an output")


def _effect(step: Any, call: Call) -> dict[str, Any]:
    result = step.meta["val"]
    found = effect(_operator(step), call)
    if isinstance(result, torch.Tensor) and not is_real(result):
        return found | {"gain": None, "why": JUMPS}
    return found


def _call(step: Any, known: dict[Any, Any]) -> Call:
    """The call that a step of the graph is, with its arguments by name."""
    args, keywords = map_arg((step.args, step.kwargs), known.get)
    if step.target is operator.getitem:
        given = {"self": args[0], "index": args[1]}
        return Call(given, _shape(step), lambda: args[0][args[1]])
    expected = step.target._schema.arguments
    given = {each.name: each.default_value for each in expected}
    given |= dict(zip([each.name for each in expected], args)) | keywords

    def run(*first: Any) -> Any:
        return step.target(**(given | dict(zip(given, first))))

    return Call(given, _shape(step), run)


def _shape(step: Any) -> tuple[int, ...]:
    """The sizes of a step's result; none if that is several arrays."""
    return tuple(map(int, getattr(step.meta["val"], "shape", ())))


def _operator(step: Any) -> str:
    if step.op == "placeholder":
        return "input"
    if step.target is operator.getitem:
        return "getitem"
    name = step.target._schema.name.partition("::")[2]
    return "batch_norm" if "batch_norm_legit" in name else name


def _name(step: Any) -> str:
    """The module that a step is in; with its own name where that is not PyTorch's."""
    if step.op == "placeholder":
        return step.name
    stack = list(step.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "")
    if str(kind).startswith("torch.nn.modules"):
        return path or step.name
    return f"{path}.{step.name}".lstrip(".")
