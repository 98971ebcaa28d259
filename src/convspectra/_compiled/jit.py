"""Functions that numba compiles, and their code on disk, which is never out of date.

numba's own cache (`cache=True`) knows a function by the file that it stands in. Ours
inline functions of other files: when one of those changes, that cache goes on with what
was compiled before. Here the folder is named after a hash of all these files, and a
file after everything else that the code depends on. A name thus never changes its
meaning, and processes that write at the same time write the same.

What is found is unpickled, that is, run: only what this user has written is read, in a
folder that nobody else can write to.
"""

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

HERE = Path(__file__).parent
HASH_LENGTH = 16
KEPT = 4  # versions of the sources to keep compiled: developers change back and forth

# Other threads may run meanwhile; x / 0 is infinite; no entry point for C.
OPTIONS: Any = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

_log = logging.getLogger("convspectra")


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function of a module when it is first called, or find it on disk."""
    compiled: Any = numba.njit(**OPTIONS)(function)
    compiled._cache = _SourceCache(function)  # `cache=True` sets one of numba's here
    return compiled


def subroutine(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled functions call: these contain its code.

    Python cannot call it, and it is not kept on disk by itself.
    """
    return numba.njit(**OPTIONS | {"no_cpython_wrapper": True})(function)


def sources() -> list[Path]:
    """All files that compiled code is made of: those of this folder."""
    return sorted(HERE.glob("*.py"))


def source_hash() -> str | None:
    """Hash of the sources as they are now; None if there are none, as in a zip file."""
    found = hashlib.sha256()
    try:
        for path in sources():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.name} {content}\n".encode())
    except OSError:
        return None
    return found.hexdigest()[:HASH_LENGTH]


# Of what this process has imported.
SOURCE_HASH = source_hash()


class _SourceCache(_Cache):
    """What numba asks for the compiled code of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"

    @property
    def cache_path(self) -> Any:
        return folder()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        data = path and _read(path)
        if data:
            return CompileResult._rebuild(target_context, *pickle.loads(data))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        path = self._path(sig, data.codegen)
        # Dynamic globals are addresses in this process.
        if path and not data.library.has_dynamic_globals:
            _write(path, dumps(data._reduce()))

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        """The file for a signature; None if nothing may be read or written."""
        here = folder()
        # Sources that changed since the import: some of them may be imported later, and
        # what is compiled then belongs to neither version.
        if here is None or source_hash() != SOURCE_HASH:
            return None
        versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag
        machine = codegen.magic_tuple()  # architecture, processor, its instructions
        key = repr((self._name, signature, machine, versions))
        return here / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


@functools.cache
def folder() -> Path | None:
    """The folder for what these sources compile to; None if none can be had."""
    return choose(_places()) if SOURCE_HASH else None


def choose(places: Iterable[tuple[Path, bool]]) -> Path | None:
    """Make the folder in the first place that is private and writable.

    A log record says so if it is none where a user would look.
    """
    for base, is_expected in places:
        here = base / str(SOURCE_HASH)
        try:
            _make_private(base)
            is_new = not here.exists()
            here.mkdir(mode=0o700, exist_ok=True)
            # To see that it can be written to, and to set its time of last use.
            tempfile.NamedTemporaryFile(dir=here).close()
        except OSError:
            continue
        if is_new:
            _remove_older(base)
        if is_new and not is_expected:
            _log.warning(
                "Compiled code is kept in %s: neither the package's folder nor the "
                "user's cache folder is private and writable. Set NUMBA_CACHE_DIR to "
                "keep it elsewhere.",
                base,
            )
        return here
    _log.warning(
        "Compiled code cannot be kept, so that each process compiles it anew: no "
        "folder is private and writable. Set NUMBA_CACHE_DIR to one that is."
    )
    return None


def _places() -> Iterator[tuple[Path, bool]]:
    """Folders in order of preference, and whether a user would look there."""
    user = f"convspectra-{os.geteuid() if hasattr(os, 'geteuid') else 'cache'}"
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(named) / user, True
    yield HERE / "__pycache__" / "compiled", True
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if stated.is_absolute():  # others are to be ignored, by that standard
        yield stated / "convspectra", True
    with contextlib.suppress(RuntimeError):  # a user without a home
        if os.access(Path.home(), os.F_OK):  # that is not there need not be made
            yield Path.home() / ".cache" / "convspectra", True
    with contextlib.suppress(FileNotFoundError):  # a machine without a place for it
        yield Path(tempfile.gettempdir()) / user, False


def _make_private(folder: Path) -> None:
    """Make the folder, unless it is there; OSError if it is not this user's alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not (stat.S_ISDIR(found.st_mode) and _is_private(found)):
        raise PermissionError(f"{folder} may hold what others have put there.")


def _is_private(found: os.stat_result) -> bool:
    """Whether this user alone can have written what is there."""
    if os.name == "nt":  # no owners and modes; a profile's folders are closed to others
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _remove_older(base: Path) -> None:
    """Remove what belongs to the versions of the sources that were used longest ago."""
    with contextlib.suppress(OSError):  # another process does the same
        versions = list(base.glob("[0-9a-f]" * HASH_LENGTH))
        versions.sort(key=lambda path: path.stat().st_mtime)
        for path in versions[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> bytes | None:
    """The bytes that this user wrote there; None if there are none, or not all."""
    try:
        with path.open("rb") as file:
            # The file, too: a folder can be exchanged for another after it was checked.
            content = file.read() if _is_private(os.fstat(file.fileno())) else b""
    except OSError:
        return None
    digest, data = content[:32], content[32:]
    return data if hashlib.sha256(data).digest() == digest else None


def _write(path: Path, data: bytes) -> None:
    """Write all or nothing: what cannot be kept is compiled again."""
    with contextlib.suppress(OSError):
        number, partial = tempfile.mkstemp(dir=path.parent)  # private
        try:
            with os.fdopen(number, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            Path(partial).replace(path)
        except OSError:
            Path(partial).unlink()
