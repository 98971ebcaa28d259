"""HDF5 files as bytes with a table of contents, which another process makes."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._base import replacing
from .files import Entry, Refusal, copy_zip, numbers_of, parsing

WHAT = "HDF5 file"
WORKER = Path(__file__).with_name("hdf5_worker.py")
SECONDS = 600  # that the worker may take, waiting for the disk included
# No threads, which claim memory; no libraries that a file asks for.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "HDF5_PLUGIN_PRELOAD": "::"}


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
        if not self.in_place(place):
            with self._file() as path:
                return numbers_of(io.BytesIO(_work(path, place)), entry)
        with parsing(WHAT), self._open() as stream:
            stream.seek(entry.start)
            return numbers_of(stream, entry)

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
        found = json.loads(_work(file))
    return Store(path, member, found["texts"], found["datasets"])


def _work(path: Path, *names: str) -> bytes:
    """What the worker prints of a file."""
    command = [sys.executable, "-P", "-W", "ignore", str(WORKER), str(path), *names]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=SECONDS,
            env=os.environ | ENVIRONMENT,
        )
    except subprocess.TimeoutExpired:
        said, code = "", 1
    else:
        said, code = done.stderr.decode(errors="replace").strip(), done.returncode
        if code == 0:
            return done.stdout
    if said.startswith("refused: "):
        raise Refusal(said.removeprefix("refused: "))
    said = said.rpartition("failed: ")[2].partition("\n")[0]
    raise Refusal(
        f"This must be a whole {WHAT}, got one that is damaged or cut short "
        f"({said or 'HDF5 does not come to an end with it'}). Save it again."
    )
