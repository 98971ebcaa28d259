"""Which graphs does an ONNX model hold, and what can the nodes of each see?

If, Loop and Scan have graphs as attributes: bodies, whose nodes see the names around
them too.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .onnx_geometry import Shapes
from .onnx_tensors import bodies
from .onnx_weights import Stored, stored_values

LONGEST = 200  # characters of a name: a file must not exhaust the memory by repeats


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A graph, and what its names stand for.

    Attributes
    ----------
    graph : GraphProto
    values : dict
        What each of its own names stands for, or why that is not stored.
    shapes : mapping
        The sizes of its arrays, as far as they are known.
    opset : int
        The version of ONNX's own operators.
    around : Scope, optional
        Of the node whose body this is.
    where : str
        That node and its attribute, as the beginning of labels.
    place : tuple of int
        The number of that node, and of this one among its bodies, on each graph on the
        way here: sorts layers by the order of computation.
    """

    graph: Any
    values: dict[str, Stored | str]
    shapes: Shapes
    opset: int
    around: "Scope | None" = None
    where: str = ""
    place: tuple[int, ...] = ()

    def value(self, name: str) -> Stored | str:
        """What a name stands for, or why that is not stored."""
        if name in self.values:
            return self.values[name]
        if self.around is not None:
            return self.around.value(name)
        return "is an input of the network"

    def sizes(self, name: str) -> list[int] | None:
        """Those of the array with this name, None where nothing is known of them."""
        if self.around is None or name in self.values:
            return self.shapes.get(name)
        return self.around.sizes(name)

    def label(self, node: Any, index: int) -> str:
        """What to call a node of this graph."""
        name = node.name or "".join(node.output[:1]) or f"node {index}"
        return short(f"{self.where}{short(name)}")


def scopes(model: Any, shapes: list[Shapes], path: Path) -> Iterator[Scope]:
    """The scopes of all graphs; `shapes` has their sizes in the order of the file."""
    versions = {each.domain: each.version for each in model.opset_import}
    opset = max(versions.get("", 0), versions.get("ai.onnx", 0))
    yield from _scopes(model.graph, None, itertools.count(), shapes, path, opset=opset)


def _scopes(
    graph: Any,
    around: Scope | None,
    numbers: Iterator[int],
    shapes: list[Shapes],
    path: Path,
    **inside: Any,
) -> Iterator[Scope]:
    number = next(numbers)
    outer = None if around is None else around.value
    values = stored_values(graph, number, path, outer)
    sizes = shapes[number] if number < len(shapes) else {}
    scope = Scope(graph, values, sizes, around=around, **inside)
    yield scope
    for index, node in enumerate(graph.node):
        for which, (name, body) in enumerate(bodies(node)):
            inside = {
                "opset": scope.opset,
                "where": f"{scope.label(node, index)}/{short(name)}/",
                "place": (*scope.place, index, which),
            }
            yield from _scopes(body, scope, numbers, shapes, path, **inside)


def short(name: Any) -> str:
    """A name as text of bounded length."""
    return f"{name}"[:LONGEST]
