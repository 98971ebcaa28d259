"""Which kernels are in a file, and what does it say about their layers?

Each format has a reader, and none needs a framework's graph.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .arrays import ARRAY_FILES, read_arrays
from .content import suffix_of
from .folder import config_in, weights_file, with_config
from .keras_file import read_keras
from .onnx_file import read_onnx
from .onnx_tensors import files_beside
from .pytorch_file import read_pytorch
from .records import Kernel as Kernel
from .records import Network as Network
from .saved_model import files_of_variables, read_saved_model
from .sharded import read_sharded, shards_of
from .tflite_file import read_tflite
from .torch_export import read_export
from .torchscript_file import read_script

Sizes = tuple[int, ...] | None
BY_OPTION = "`--grid` and the like, or `--geometry`"


@dataclass(frozen=True, slots=True)
class Format:
    """How the names of files of this kind end, who reads them, and what is in them.

    Attributes
    ----------
    suffixes : tuple of str
    read : function
        From the path, the layout of arrays and the sizes of the network's input, either
        of them None if it is not given.
    others : function
        From the path, the other files that such a network consists of. It is asked to
        see whether one has changed, and reads no numbers.
    contains, you_add : str
        What such a file says, and what a user adds to it, for the table in
        docs/report.md.
    graph : bool
        It says which size each layer sees, and which BatchNorm follows it.
    matrices : bool
        Those of linear layers are known to be what they are.
    writable : bool
        A copy with other kernels can be written.
    """

    suffixes: tuple[str, ...]
    read: Callable[[Path, str | None, Sizes], Network]
    others: Callable[[Path], Iterable[Path]] = lambda _: ()
    contains: str = "kernels only"
    you_add: str = BY_OPTION
    graph: bool = False
    matrices: bool = False
    writable: bool = True


# All that names suffixes is made from this list.
_FORMATS = (
    Format(
        suffixes=tuple(ARRAY_FILES),
        read=lambda path, layout, _sizes: read_arrays(path, layout),
    ),
    Format(
        suffixes=(".onnx",),
        read=lambda path, _layout, sizes: read_onnx(path, sizes),
        others=files_beside,
        contains="kernels and the whole geometry, from the graph",
        you_add="`--input 1x3x224x224` if sizes are symbolic",
        graph=True,
        matrices=True,
    ),
    Format(
        suffixes=(".pt", ".pth", ".th", ".ckpt", ".bin"),
        read=lambda path, _layout, _sizes: read_pytorch(path),
        contains="the kernels of a PyTorch state dict",
    ),
    Format(
        suffixes=(".pt2",),
        read=lambda path, _layout, sizes: read_export(path, sizes),
        contains="kernels and the whole geometry, from the graph of `torch.export`",
        you_add="`--input 1x3x224x224` if sizes are dynamic",
        graph=True,
        matrices=True,
    ),
    Format(
        suffixes=(".jit", ".torchscript"),
        read=lambda path, _layout, _sizes: read_script(path),
        contains="kernels; strides, padding and groups from TorchScript's code, "
        "also as `.pt`",
        matrices=True,
        writable=False,
    ),
    Format(
        suffixes=(".keras", ".h5", ".hdf5"),
        read=lambda path, _layout, _sizes: read_keras(path),
        contains="kernels; of a whole model the geometry, mostly with sizes",
        matrices=True,
    ),
    Format(
        suffixes=(".tflite",),
        read=lambda path, _layout, _sizes: read_tflite(path),
        contains="kernels, quantized ones scaled back, and the geometry from the graph",
        you_add="`--grid` if sizes are open",
        matrices=True,
    ),
    Format(
        suffixes=(".pb",),
        read=lambda path, _layout, _sizes: read_saved_model(path),
        others=files_of_variables,
        contains="a SavedModel or a frozen graph: kernels and their geometry",
        you_add="`--grid` if sizes are open",
        matrices=True,
        writable=False,
    ),
    Format(
        suffixes=(".safetensors.index.json",),
        read=lambda path, layout, _sizes: read_sharded(path, layout),
        others=shards_of,
        contains="the kernels of a sharded checkpoint",
        writable=False,
    ),
)
FORMATS = {suffix: found for found in _FORMATS for suffix in found.suffixes}


def suffixes(which: Callable[[Format], bool] = lambda _: True) -> str:
    """The suffixes of all formats, or of some, as a list for people."""
    return ", ".join(suffix for suffix, found in FORMATS.items() if which(found))


def read_network(
    path: Path, *, layout: str | None = None, sizes: Sizes = None
) -> Network:
    """Find the kernels of a file, and read none of them where that is possible.

    Parameters
    ----------
    path : Path
        Its first bytes say the format where they can, else its suffix, in small or
        capital letters. A folder holds such a file, and may hold a config.json.
    layout : {"oihw", "hwio"}, optional
        Of kernels among arrays; by default what the file says, else "oihw".
    sizes : tuple of int, optional
        Of the network's input, for files with a graph.
    """
    if path.is_dir():
        network = read_network(weights_file(path), layout=layout, sizes=sizes)
        return with_config(network, path)
    found = _format_of(path)
    if found is None:
        raise ValueError(
            f"A network must be in a file that ends in {suffixes()}, got "
            f"{path.suffix or 'no suffix'}. Save it in one of these formats."
        )
    return found.read(path, layout, sizes)


def has_graph(path: Path) -> bool:
    """Whether a file, or the one in a folder, says which size each layer sees."""
    found = _format_of(weights_file(path))
    return found is not None and found.graph


def files_of(path: Path) -> list[Path]:
    """All files that a network consists of, beginning with the one that is read first.

    If one of them changes, the network may. No numbers are read to find them.
    """
    if path.is_dir():
        return [*files_of(weights_file(path)), *config_in(path)]
    found = _format_of(path)
    return [path, *(found.others(path) if found is not None else ())]


def _format_of(path: Path) -> Format | None:
    """The format of a file; None if it has none that is read."""
    if path.exists() and not path.is_file():
        raise ValueError("Kernels must come from a regular file, got something else.")
    name = path.name.lower()
    suffix = next((end for end in FORMATS if name.endswith(end)), "")
    suffix = (suffix_of(path) if path.exists() else "") or suffix
    return FORMATS.get(suffix)
