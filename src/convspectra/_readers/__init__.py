"""Networks in files: each format has a reader, and none needs a framework's graph."""

from pathlib import Path

from .arrays import read_arrays
from .keras_file import read_keras
from .onnx_file import read_onnx
from .pytorch_file import read_pytorch
from .records import Kernel as Kernel
from .records import Network as Network
from .sharded import read_sharded

ARRAYS = (".npy", ".npz", ".safetensors")
KERAS = (".keras", ".h5", ".hdf5")
PYTORCH = (".pt", ".pth", ".th", ".ckpt", ".bin")
INDEX = ".safetensors.index.json"
SUFFIXES = (*ARRAYS, ".onnx", *PYTORCH, *KERAS, INDEX)


def read_network(
    path: Path, *, layout: str | None = None, sizes: tuple[int, ...] | None = None
) -> Network:
    """Find the kernels of a file, by a look at all but their numbers where possible.

    Parameters
    ----------
    path : Path
        Its suffix says the format.
    layout : {"oihw", "hwio"}, optional
        Of kernels among arrays; by default what the file says, else "oihw".
    sizes : tuple of int, optional
        Of the network's input, for files with a graph.
    """
    suffix = path.suffix.lower()
    known = suffix in SUFFIXES or path.name.endswith(INDEX)
    if not known:
        raise ValueError(
            f"A network must be in a file that ends in {', '.join(SUFFIXES)}, got "
            f"{suffix or 'no suffix'}. Save it in one of these formats."
        )
    if path.exists() and not path.is_file():
        raise ValueError("Kernels must come from a regular file, got something else.")
    if suffix == ".onnx":
        return read_onnx(path, sizes)
    if suffix in PYTORCH:
        return read_pytorch(path)
    if suffix in KERAS:
        return read_keras(path)
    if path.name.endswith(INDEX):
        return read_sharded(path, layout)
    return read_arrays(path, layout)
