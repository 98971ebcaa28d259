"""CIFAR-10 from its home page: asked for, resumable, and verified."""

import hashlib
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.record import write

from .images import IN_ARCHIVE, PARTS, is_right
from .talk import live, say

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # of the archive, as the home page states it
BLOCK, SECONDS = 1 << 18, 60  # bytes per read, and how long to wait for them


def download_cifar10(folder: Path) -> None:
    """Fetch the archive into the folder, verify it, and unpack its six files there.

    What an interrupted download left behind is gone on with. Files that are there and
    whole are left alone, and so is an archive that somebody else has put there.
    """
    if all(_is_there(folder, part) for part in PARTS):
        return
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "cifar-10-binary.tar.gz"
    fetched = not archive.exists()
    if fetched:
        archive = archive.with_suffix(".part")
        _fetch(archive)
    if (found := _digest(archive)) != MD5:
        if fetched:
            archive.unlink()
        raise OSError(
            f"{str(archive)!r} must have the MD5 checksum {MD5}, and has {found}. "
            f"{'It was removed' if fetched else 'Remove it'}: run this again."
        )
    with tarfile.open(archive) as tar:
        for part in PARTS:  # by name: nothing else of the archive is written
            member = tar.extractfile(f"{IN_ARCHIVE}/{part}.bin")
            content = member.read() if member else b""
            if not is_right(part, content):
                raise OSError(f"{part}.bin in {str(archive)!r} has another checksum.")
            write(folder / f"{part}.bin", content)
    if fetched:
        archive.unlink()
    say(f"CIFAR-10 is in {folder}")


def _is_there(folder: Path, part: str) -> bool:
    path = folder / f"{part}.bin"
    return path.exists() and is_right(part, path.read_bytes())


def _fetch(partial: Path) -> None:
    """Append to the file what it lacks."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(ADDRESS)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            resumed = answer.status == 206  # else the server sends all of it
            total = int(answer.headers.get("Content-Length", 0)) + have * resumed
            with partial.open("ab" if resumed else "wb") as file:
                _copy(answer, file, have * resumed, total)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing: the checksum decides
            return
        raise OSError(f"{ADDRESS} must send CIFAR-10, but answered {error}.") from error
    except (OSError, EOFError) as error:
        raise OSError(
            f"{ADDRESS} must be reachable, but: {error}. What has come is kept: run "
            "this again to go on, or fetch that file yourself into the --data folder."
        ) from error


def _copy(answer: Any, file: Any, have: int, total: int) -> None:
    while block := answer.read(BLOCK):
        file.write(block)
        have += len(block)
        bar = "#" * (30 * have // max(total, have))
        live(f"CIFAR-10 [{bar:<30}] {have >> 20} of {total >> 20} MiB")
    if have < total:
        raise EOFError(f"{have} of {total} bytes came")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
