"""A model as `torch.export` sees it: a graph without state, and what goes into it."""

import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.export.passes import move_to_device_pass
from torch.fx.node import Node as Step
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

RMS_NORM = "aten.rms_norm.default"


class Program:
    """The graph of a model, traced with an example, on the CPU.

    Attributes
    ----------
    given : dict
        What goes into its placeholders: weights, buffers and the example.
    inputs : list of torch.fx.Node
        The placeholders of the example's arrays of real numbers.
    outputs : list of torch.fx.Node
        The steps that are results of the model.
    """

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> None:
        self._leaves, self._tree = pytree.tree_flatten((args, dict(keywords)))
        # Arrays that are given twice, or belong to the model, are still two inputs.
        self._leaves = [_copy(leaf) for leaf in self._leaves]
        args, keywords = pytree.tree_unflatten(self._leaves, self._tree)
        try:
            with warnings.catch_warnings():  # PyTorch's, of its own code
                warnings.simplefilter("ignore")
                exported = torch.export.export(model, args, dict(keywords))
                exported = exported.run_decompositions({})  # no changes in place
                exported = move_to_device_pass(exported, _to_cpu(exported))
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise ValueError(
                "The model must be one that torch.export can trace, which says: "
                f"{first or type(error).__name__}"
            ) from error
        signature = exported.graph_signature
        stored: dict[str, Any] = {**exported.state_dict, **exported.constants}
        self._steps: list[Step] = list(exported.graph.nodes)
        self._module: Any = exported.graph_module
        self.given: dict[Step, Any] = {}
        self.inputs: list[Step] = []
        leaves = iter(self._leaves)
        holes = (step for step in self._steps if step.op == "placeholder")
        for step, spec in zip(holes, signature.input_specs, strict=True):
            is_input = spec.kind == InputKind.USER_INPUT
            value: Any = None  # of a token, which keeps the order of side effects
            if is_input:
                value = next(leaves)
            elif spec.kind != InputKind.TOKEN:
                value = stored[spec.target or ""]
            is_array = isinstance(value, Tensor)
            self.given[step] = _on_cpu(value.detach()) if is_array else value
            if is_input and is_real(value):
                self.inputs.append(step)
        for step in self._steps:
            if step.op == "get_attr":  # a graph that a step runs
                self.given[step] = self._module.get_submodule(step.target)
        results: Any = self._steps[-1].args[0]
        self.outputs: list[Step] = [
            result
            for result, spec in zip(results, signature.output_specs, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT and isinstance(result, Step)
        ]

    def calls(self) -> Iterator[Step]:
        """The steps that have a result."""
        for step in self._steps:
            if step.op == "call_function" and "val" in step.meta:
                yield step

    def is_random(self, step: Step) -> bool:
        """Whether a step draws random numbers, also in a graph that it runs."""
        target: Any = step.target
        if isinstance(target, OpOverload):
            tagged = torch.Tag.nondeterministic_seeded in target.tags
            return tagged and not _without_dropout(arguments(step, {}))
        graphs = [
            self.given[x].graph for x in step.all_input_nodes if x.op == "get_attr"
        ]
        return any(_draws(inner) for graph in graphs for inner in graph.nodes)

    def called(self, model: nn.Module, inputs: list[Tensor]) -> list[Any]:
        """What the model itself gives, for other arrays in the place of its inputs."""
        others = iter(inputs)
        leaves = [
            next(others).to(leaf) if is_real(leaf) else _copy(leaf)
            for leaf in self._leaves
        ]
        args, keywords = pytree.tree_unflatten(leaves, self._tree)
        results = pytree.tree_leaves(model(*args, **keywords))
        return [x.detach().cpu() if isinstance(x, Tensor) else x for x in results]

    def rounding(self) -> float:
        """The unit of rounding of the coarsest precision on the way."""
        results = [step.meta["val"] for step in self.calls()]
        arrays = pytree.tree_leaves([results, list(self.given.values())])
        return max(torch.finfo(x.dtype).eps for x in arrays if is_real(x))


def arguments(step: Step, known: Mapping[Step, Any]) -> dict[str, Any]:
    """The arguments of a step by name, with what is known of other steps.

    By number, where they have no names: of an operator of Python, or one with graphs.
    """
    args, keywords = map_arg((step.args, step.kwargs), known.get)
    if not isinstance(step.target, OpOverload):
        return {str(place): each for place, each in enumerate(args)} | keywords
    expected = step.target._schema.arguments
    given = {each.name: each.default_value for each in expected}
    return given | dict(zip(given, args)) | keywords


def in_double(step: Step, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which a step computes the same in double precision."""
    found = {name: pytree.tree_map(_double, each) for name, each in given.items()}
    dtype = found.get("dtype")
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        found["dtype"] = torch.float64
    if overload(step) == RMS_NORM and found["eps"] is None:
        first: Any = step.args[0]
        own = first.meta["val"].dtype
        computed_in = torch.float64 if own == torch.float64 else torch.float32
        found["eps"] = torch.finfo(computed_in).eps
    return found


def computed(step: Step, given: Mapping[str, Any]) -> Any:
    """The result of a step, with all its arguments."""
    target: Any = step.target
    args = [each for name, each in given.items() if name.isdigit()]
    return target(*args, **{k: each for k, each in given.items() if not k.isdigit()})


def is_real(x: Any) -> bool:
    """Whether it is an array of real numbers."""
    return isinstance(x, Tensor) and x.is_floating_point()


def overload(step: Step) -> str:
    """The operator of a step with its overload, such as "aten.add.Tensor"."""
    return "getitem" if step.target is operator.getitem else str(step.target)


def _to_cpu(exported: ExportedProgram) -> dict[str, str]:
    """From which devices arrays come to the CPU: all that have numbers."""
    arrays = pytree.tree_leaves(
        [exported.state_dict, exported.constants, exported.example_inputs]
    )
    devices = {x.device for x in arrays if isinstance(x, Tensor) and not x.is_meta}
    return {name: "cpu" for each in devices for name in (str(each), each.type)}


def _on_cpu(x: Tensor) -> Tensor:
    return x if x.is_meta else x.cpu()


def _copy(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


def _double(x: Any) -> Any:
    return x.double() if is_real(x) else x


def _draws(step: Step) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(step.target, "tags", ())


def _without_dropout(given: Mapping[str, Any]) -> bool:
    """Whether an operator that may drop entries drops none."""
    share = given.get("dropout_p", given.get("dropout"))
    return share == 0 or False in (given.get("train"), given.get("training"))
