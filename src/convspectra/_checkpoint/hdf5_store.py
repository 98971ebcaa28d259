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
from typing import IO, Any

import numpy as np

from .._base import replacing
from .files import COMPRESSED_BYTES, Entry, Refusal, copy_zip, numbers_of, parsing
from .sandbox import Died, Limits, hdf5_limits, run

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

    def entry(self, place: str) -> Entry:
        """The dataset at a path."""
        found = self.datasets[place]
        shape, start = tuple(found["shape"]), found["start"] or 0
        dtype, code = found["dtype"], found["code"]
        said = self.texts.get(place, {}).get("dtype")
        if code == "|V2" and said == ["bfloat16"]:
            dtype = code = "bfloat16"  # HDF5 has no such numbers, Keras says so
        return Entry(place, dtype, shape, code, start=start)

    def in_place(self, place: str) -> bool:
        """Whether a dataset is stored as its plain bytes, in one row."""
        return self.datasets[place]["start"] is not None

    def load(self, place: str) -> np.ndarray:
        """The numbers of a dataset."""
        entry = self.entry(place)
        if self.in_place(place):
            with parsing(WHAT), self._open() as stream:
                stream.seek(entry.start)
                return numbers_of(stream, entry)
        with self._file() as path:
            size, found = path.stat().st_size, self.datasets[place]
            wanted = math.prod(entry.shape) * np.dtype(found["code"]).itemsize
            if wanted > (COMPRESSED_BYTES if found["chunked"] else size):
                raise Refusal(f"{place!r} must not grow to {wanted} bytes from {size}.")
            data = _work(path, hdf5_limits(size, wanted), place)
            return numbers_of(io.BytesIO(data), entry)

    def write(self, target: Path, stored: Mapping[str, bytes]) -> None:
        """Copy the file with other bytes in some datasets that are in place."""
        with replacing(target) as partial:
            if self.member is None:
                shutil.copyfile(self.path, partial)
                with partial.open("r+b") as stream:
                    self._patch(stream, stored)
                return
            with parsing(WHAT), self._open() as old:
                inner = io.BytesIO(old.read())
            self._patch(inner, stored)
            name = self.member.filename
            whole = Entry(name, "", (), member=self.member)
            copy_zip(self.path, partial, {name: whole}, {name: inner.getvalue()})

    def _patch(self, stream: IO[bytes], stored: Mapping[str, bytes]) -> None:
        for place, data in stored.items():
            stream.seek(self.entry(place).start)
            stream.write(data)

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if self.member is None:
            with self.path.open("rb") as stream:
                yield stream
            return
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as stream:
            yield stream

    @contextmanager
    def _file(self) -> Iterator[Path]:
        """The path of the HDF5 file, which is a copy if it is inside another."""
        if self.member is None:
            yield self.path
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "member.h5"
            with parsing(WHAT), self._open() as stream, copy.open("wb") as target:
                shutil.copyfileobj(stream, target)
            yield copy


def open_store(path: Path, member: zipfile.ZipInfo | None = None) -> Store:
    """Have a look at what is in an HDF5 file."""
    with Store(path, member)._file() as file:
        found = json.loads(_work(file, hdf5_limits(file.stat().st_size)))
    return Store(path, member, found["texts"], found["datasets"])


def _work(path: Path, limits: Limits, *names: str) -> bytes:
    """What the worker prints of a file."""
    with parsing(WHAT):
        try:
            return run(WORKER, limits, str(path), *names)
        except Died as died:
            kind, _, said = str(died).partition(": ")
            error = Refusal if kind == "Refused" else ValueError
            said = said or kind or "HDF5 does not come to an end with it"
            raise error(said) from None
