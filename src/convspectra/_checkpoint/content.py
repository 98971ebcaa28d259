"""Which format is a file in, by its first bytes?"""

import zipfile
from pathlib import Path

HDF5 = b"\x89HDF\r\n\x1a\n"
MOST_MEMBERS = 10**5  # of an archive whose names are looked at


def suffix_of(path: Path) -> str:
    """The usual suffix of such a file, empty where the bytes do not tell."""
    with path.open("rb") as stream:
        head = stream.read(16)
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    if head.startswith(b"\x93NUMPY"):
        return ".npy"
    if head.startswith(HDF5):
        return ".h5"
    if head[4:8] == b"TFL3":
        return ".tflite"
    if head[8:9] == b"{" and head[7:8] == b"\0":  # the length of a header, in 8 bytes
        return ".safetensors"
    return ""


def _archive(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()[:MOST_MEMBERS]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError):
        return ""
    if any(name.endswith("/archive_format") for name in names):
        return ".pt2"
    if any(name.endswith("/data.pkl") for name in names):
        compiled = any(name.endswith("/constants.pkl") for name in names)
        return ".jit" if compiled else ".pt"
    if {"config.json", "model.weights.h5"} <= set(names):
        return ".keras"
    if names and all(name.endswith(".npy") for name in names):
        return ".npz"
    return ""
