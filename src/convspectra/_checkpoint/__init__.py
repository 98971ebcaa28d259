"""Which kernels are in a file, and what does it say about their layers?

Each format has a reader, and none needs a framework's graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .arrays import read_arrays
from .files import ARRAY_FILES
from .keras_file import read_keras
from .onnx_file import read_onnx
from .pytorch_file import read_pytorch
from .records import Kernel as Kernel
from .records import Network as Network
from .sharded import read_sharded

Sizes = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Format:
    """Who reads a kind of file, and what there is in it besides kernels.

    Attributes
    ----------
    read : function
        From the path, the layout of arrays and the sizes of the network's input, either
        of them None if it is not given.
    graph : bool
        It says which size each layer sees, and which BatchNorm follows it.
    matrices : bool
        Those of linear layers are known to be what they are.
    writable : bool
        A copy with other kernels can be written.
    """

    read: Callable[[Path, str | None, Sizes], Network]
    graph: bool = False
    matrices: bool = False
    writable: bool = True


_ARRAYS = Format(lambda path, layout, _sizes: read_arrays(path, layout))
_SHARDED = Format(
    lambda path, layout, _sizes: read_sharded(path, layout), writable=False
)
_ONNX = Format(
    lambda path, _layout, sizes: read_onnx(path, sizes), graph=True, matrices=True
)
_PYTORCH = Format(lambda path, _layout, _sizes: read_pytorch(path))
_KERAS = Format(lambda path, _layout, _sizes: read_keras(path), matrices=True)

# The list of what can be read, by how names end: all else that names suffixes is made
# from it, or checked against it.
FORMATS = {
    **dict.fromkeys(ARRAY_FILES, _ARRAYS),
    ".onnx": _ONNX,
    **dict.fromkeys((".pt", ".pth", ".th", ".ckpt", ".bin"), _PYTORCH),
    **dict.fromkeys((".keras", ".h5", ".hdf5"), _KERAS),
    ".safetensors.index.json": _SHARDED,
}


def suffixes(which: Callable[[Format], bool] = lambda _: True) -> str:
    """The suffixes of all formats, or of some, as a list for people."""
    return ", ".join(suffix for suffix, found in FORMATS.items() if which(found))


def read_network(
    path: Path, *, layout: str | None = None, sizes: Sizes = None
) -> Network:
    """Find the kernels of a file, by a look at all but their numbers where possible.

    Parameters
    ----------
    path : Path
        Its suffix says the format, in small or capital letters.
    layout : {"oihw", "hwio"}, optional
        Of kernels among arrays; by default what the file says, else "oihw".
    sizes : tuple of int, optional
        Of the network's input, for files with a graph.
    """
    name = path.name.lower()
    found = next((FORMATS[end] for end in FORMATS if name.endswith(end)), None)
    if found is None:
        raise ValueError(
            f"A network must be in a file that ends in {suffixes()}, got "
            f"{path.suffix or 'no suffix'}. Save it in one of these formats."
        )
    if path.exists() and not path.is_file():
        raise ValueError("Kernels must come from a regular file, got something else.")
    return found.read(path, layout, sizes)
