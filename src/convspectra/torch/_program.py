"""A model as `torch.export` sees it: a graph without state, and what goes into it."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree


class Program:
    """The graph of a model, traced with an example.

    Attributes
    ----------
    graph : torch.fx.Graph
        Without changes in place.
    given : list
        What goes into its placeholders, in their order: weights, buffers and the
        example.
    inputs : list of int
        The places in `given` of the example's arrays of real numbers.
    outputs : list of int
        Which of the graph's results are the model's.
    """

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> None:
        try:
            with warnings.catch_warnings():  # PyTorch's, of its own code
                warnings.simplefilter("ignore")
                exported = torch.export.export(model, args, dict(keywords))
                exported = exported.run_decompositions({})  # no changes in place
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise ValueError(
                "The model must be one that torch.export can trace, which says: "
                f"{first or type(error).__name__}"
            ) from error
        signature = exported.graph_signature
        stored: dict[str, Any] = {**exported.state_dict, **exported.constants}
        leaves = iter(pytree.tree_leaves((args, dict(keywords))))
        self.graph, self._module = exported.graph, exported.graph_module
        self.given: list[Any] = []
        self.inputs: list[int] = []
        for place, spec in enumerate(signature.input_specs):
            if spec.kind != InputKind.USER_INPUT:
                self.given.append(stored[spec.target or ""].detach())
                continue
            self.given.append(next(leaves))
            if is_real(self.given[-1]):
                self.inputs.append(place)
        self.outputs = [
            place
            for place, spec in enumerate(signature.output_specs)
            if spec.kind == OutputKind.USER_OUTPUT
        ]

    def function(self, dtype: torch.dtype) -> Callable[[list[Tensor]], Tensor]:
        """The model as a function of its inputs, all results in one row.

        Weights and constants are converted to `dtype`; inputs must have it.
        """
        given = [x.detach().to(dtype) if is_real(x) else x for x in self.given]

        def call(inputs: list[Tensor]) -> Tensor:
            arguments = list(given)
            for place, x in zip(self.inputs, inputs):
                arguments[place] = x
            results = self._module(*arguments)
            wanted = [results[place] for place in self.outputs]
            return torch.cat([x.flatten() for x in wanted if is_real(x)])

        return call


def is_real(x: Any) -> bool:
    """Whether it is an array of real numbers."""
    return isinstance(x, Tensor) and x.is_floating_point()
