"""What should a user add to an ONNX file, so that the sizes in it are known?"""

from collections.abc import Sequence
from typing import Any

EXAMPLE = 224  # for a size that is open
SAMPLES = 16000  # the same for an input of two axes: a second of speech
MOST = 5  # nodes that are named
LONGEST = 40  # characters of a name that are shown


def free_sizes(graph: Any, channels: int) -> str:
    """Say which sizes of the network's input are open, and how to state them.

    `channels` is the number that the first layer reads, for an example.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    if not inputs or not inputs[0].type.HasField("tensor_type"):
        return ""
    tensor, name = inputs[0].type.tensor_type, inputs[0].name[:LONGEST]
    if not tensor.HasField("shape"):
        return (
            f"The graph does not say how many axes its input {name!a} has: pass "
            f"--input, for example --input 1x{channels}x{EXAMPLE}x{EXAMPLE}."
        )
    dims = list(tensor.shape.dim)[:10]
    places = "NC" if len(dims) > 2 else "N"
    names = [_name(dim, axis, places) for axis, dim in enumerate(dims)]
    free = [n for n, dim in zip(names, dims) if dim.dim_value < 1]
    if not free:
        return ""
    likely = [1, channels, *[EXAMPLE] * len(dims)] if len(dims) > 2 else [1, SAMPLES]
    example = [d.dim_value if d.dim_value > 0 else n for d, n in zip(dims, likely)]
    return (
        f"Sizes are unknown, because the graph's input {name!a} is "
        f"{' x '.join(names)} with {', '.join(free)} free: pass --input, for example "
        f"--input {'x'.join(map(str, example))}."
    )


def lost_sizes(nodes: Sequence[str]) -> str:
    """Say at which nodes the sizes of later layers are lost."""
    named = [node for node in nodes if node != "the input"]
    if not named:
        return ""
    some, more = ", ".join(named[:MOST]), len(named) - MOST
    return (
        f"Sizes are unknown after {some}{f' and {more} more' if more > 0 else ''}: "
        "the sizes of what these nodes give do not follow from the graph. State those "
        "of the layers by --geometry."
    )


def _name(dim: Any, axis: int, places: str) -> str:
    """What a size is called; those without a name by their places."""
    if dim.dim_value > 0:
        return str(dim.dim_value)
    given = dim.dim_param[:LONGEST]
    if given.isprintable() and given.strip("?"):
        return given
    return places[axis] if axis < len(places) else f"size {axis}"
