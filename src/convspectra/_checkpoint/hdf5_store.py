"""HDF5 files as bytes with a table of contents, which another process makes."""

import io
import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .sandbox import Died, Limits, hdf5_limits, run
from .stored import COMPRESSED_BYTES, Entry, Refusal, opened, parsing

WHAT = "HDF5 file"
WORKER = Path(__file__).with_name("hdf5_worker.py")


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """An HDF5 file, or a member of a zip file that is one."""

    path: Path
    member: zipfile.ZipInfo | None = None
    # Attributes by path and name, and how each dataset is stored, by path.
    texts: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def entry(self, dataset: str) -> Entry:
        """What is stated of the dataset at a path."""
        stated = self.datasets[dataset]
        dtype, code = stated["dtype"], stated["code"]
        if code == "|V2" and self.texts.get(dataset, {}).get("dtype") == ["bfloat16"]:
            dtype = code = "bfloat16"  # HDF5 has no such numbers, Keras says so
        return Entry(
            name=dataset,
            dtype=dtype,
            shape=tuple(stated["shape"]),
            code=code,
            start=stated["start"] or 0,
            member=self.member,
        )

    def is_contiguous(self, dataset: str) -> bool:
        """Whether the plain bytes of a dataset are in the file, one after another."""
        return self.datasets[dataset]["start"] is not None

    def load(self, dataset: str) -> np.ndarray:
        """The array in a dataset."""
        entry = self.entry(dataset)
        if self.is_contiguous(dataset):
            with parsing(WHAT), opened(self.path, self.member) as stream:
                stream.seek(entry.start)
                return entry.read_from(stream)
        with self._file() as path:
            size, stated = path.stat().st_size, self.datasets[dataset]
            wanted = math.prod(entry.shape) * np.dtype(stated["code"]).itemsize
            if wanted > (COMPRESSED_BYTES if stated["chunked"] else size):
                raise Refusal(
                    f"{dataset!r} must not grow to {wanted} bytes from {size}."
                )
            data = _work(path, hdf5_limits(size, wanted), dataset)
            return entry.read_from(io.BytesIO(data))

    @contextmanager
    def _file(self) -> Iterator[Path]:
        """The path of the HDF5 file, which is a copy if it is inside another."""
        if self.member is None:
            yield self.path
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "member.h5"
            with (
                parsing(WHAT),
                opened(self.path, self.member) as stream,
                copy.open("wb") as target,
            ):
                shutil.copyfileobj(stream, target)
            yield copy


def open_store(path: Path, member: zipfile.ZipInfo | None = None) -> Store:
    """Have a look at what is in an HDF5 file."""
    with Store(path, member)._file() as file:
        found = json.loads(_work(file, hdf5_limits(file.stat().st_size)))
    return Store(path, member, found["texts"], found["datasets"])


def _work(path: Path, limits: Limits, *datasets: str) -> bytes:
    """What the worker prints of a file, or of one dataset in it."""
    with parsing(WHAT):
        try:
            return run(WORKER, limits, str(path), *datasets)
        except Died as died:
            kind, _, text = str(died).partition(": ")
            error = Refusal if kind == "Refused" else ValueError
            text = text or kind or "HDF5 does not come to an end with it"
            raise error(text) from None
