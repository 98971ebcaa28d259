"""A model as `torch.export` sees it: a graph without state, computed in double."""

import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import Node as Step
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree


class Program:
    """The graph of a model, traced with an example.

    Attributes
    ----------
    steps : list of torch.fx.Node
        The graph's, in the order of computation, without changes in place.
    given : dict
        What goes into its placeholders: weights, buffers and the example. Real numbers
        are converted to double precision.
    inputs : list of torch.fx.Node
        The placeholders of the example's arrays of real numbers.
    outputs : list of torch.fx.Node
        The steps that are results of the model.
    """

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> None:
        args, keywords = pytree.tree_map(_usual, (args, dict(keywords)))
        try:
            with warnings.catch_warnings():  # PyTorch's, of its own code
                warnings.simplefilter("ignore")
                exported = torch.export.export(model, args, keywords)
                exported = exported.run_decompositions({})  # no changes in place
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise ValueError(
                "The model must be one that torch.export can trace, which says: "
                f"{first or type(error).__name__}"
            ) from error
        signature = exported.graph_signature
        stored: dict[str, Any] = {**exported.state_dict, **exported.constants}
        leaves = iter(pytree.tree_leaves((args, keywords)))
        self.steps: list[Step] = list(exported.graph.nodes)
        self.given: dict[Step, Any] = {}
        self.inputs: list[Step] = []
        holes = (step for step in self.steps if step.op == "placeholder")
        for step, spec in zip(holes, signature.input_specs, strict=True):
            is_input = spec.kind == InputKind.USER_INPUT
            value = next(leaves) if is_input else stored[spec.target or ""]
            value = value.detach() if isinstance(value, Tensor) else value
            self.given[step] = in_double(value)
            if is_input and is_real(value):
                self.inputs.append(step)
        inside: Any = exported.graph_module
        for step in self.steps:
            if step.op == "get_attr":  # a graph that a step runs
                self.given[step] = inside.get_submodule(step.target)
        results: Any = self.steps[-1].args[0]
        self.outputs: list[Step] = [
            result
            for result, spec in zip(results, signature.output_specs, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT and isinstance(result, Step)
        ]

    def calls(self) -> Iterator[Step]:
        """The steps that compute something; the others are assertions."""
        for step in self.steps:
            if step.op == "call_function" and "val" in step.meta:
                yield step


def arguments(step: Step, known: Mapping[Step, Any]) -> dict[str, Any]:
    """The arguments of a step by name, with what is known of other steps.

    All real numbers are to be in double precision. What depends on the precision of
    the input is made explicit.
    """
    args, keywords = map_arg((step.args, step.kwargs), known.get)
    schema = getattr(step.target, "_schema", None)
    if schema is None:  # of an operator of Python, or of a part with a graph inside
        return {str(i): each for i, each in enumerate(args)} | keywords
    given = {each.name: each.default_value for each in schema.arguments}
    given |= dict(zip(given, args)) | keywords
    dtype = given.get("dtype")
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        given["dtype"] = torch.float64
    first: Any = step.args[0] if step.args else None
    if given.get("eps", 0) is None and isinstance(first, Step):  # of rms_norm
        given["eps"] = torch.finfo(first.meta["val"].dtype).eps
    return given


def computed(step: Step, given: Mapping[str, Any]) -> Any:
    """The result of a step, with all its arguments."""
    target: Any = step.target
    if not isinstance(target, torch._ops.OpOverload):
        return target(*given.values())
    return in_double(target(**given))


def in_double(value: Any) -> Any:
    """What is real, in double precision; all else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(in_double, value))
    return value.double() if is_real(value) else value


def _usual(x: Any) -> Any:
    """An array that was made in inference mode as one that autograd knows."""
    return x.clone() if isinstance(x, Tensor) and x.is_inference() else x


def is_real(x: Any) -> bool:
    """Whether it is an array of real numbers."""
    return isinstance(x, Tensor) and x.is_floating_point()


def is_random(step: Step) -> bool:
    """Whether a step draws random numbers."""
    tags = getattr(step.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def overload(step: Step) -> str:
    """The operator of a step with its overload, such as "aten.add.Tensor"."""
    if step.target is operator.getitem:
        return "getitem"
    return str(step.target)
