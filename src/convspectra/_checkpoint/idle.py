"""Which options change nothing for a file? Said, since something was meant by them."""

from collections.abc import Sequence
from pathlib import Path

from . import Kernel, has_graph, suffixes

_GRAPHS = suffixes(lambda format: format.graph)
INPUT = (
    f"`--input` changes nothing here: only a graph ({_GRAPHS}) says which size each\n"
    "layer sees. State --grid, or --geometry for each layer."
)
FOLD = (
    "`--fold` changes nothing here: the file shows no BatchNorm after these layers.\n"
    f"A graph ({_GRAPHS}) can."
)
LIKE = (
    "`--like` changes nothing here: {like} says nothing of the geometry of these\n"
    "kernels that the file itself does not say. Name a graph or a configuration, or\n"
    "state --geometry."
)


def idle_input(path: Path, like: Path | None) -> list[str]:
    """What to say of sizes for the network's input, if no file has a use for them."""
    files = [path] if like is None else [path, like]
    return [] if any(map(has_graph, files)) else [INPUT]


def idle_fold(kernels: Sequence[Kernel]) -> list[str]:
    """What to say of folding, if there is nothing to fold."""
    return [] if any(kernel.factors is not None for kernel in kernels) else [FOLD]


def idle_like(
    like: Path, kernels: Sequence[Kernel], described: Sequence[Kernel]
) -> list[str]:
    """What to say of another file that says no more of the kernels than their own."""
    more = [one.stated != other.stated for one, other in zip(kernels, described)]
    return [] if any(more) else [LIKE.format(like=like)]
