"""CIFAR-10 from a folder, verified: its six binary files, or six lossless mosaics."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CLASSES, SIDE = 10, 32
PARTS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
FILES = tuple(f"{part}.webp" for part in PARTS)  # the mosaics
# Of the files data_batch_1.bin to test_batch.bin in cifar-10-binary.tar.gz.
MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of pixels in 0 .. 1
IN_ARCHIVE = "cifar-10-batches-bin"  # the folder that the archive unpacks to


class Images(NamedTuple):
    pixels: Tensor  # (images, 3, 32, 32), bytes
    labels: Tensor  # (images,)


def read_cifar10(folder: Path) -> tuple[Images, Images]:
    """The images for training and those for the test.

    The folder holds either data_batch_1.bin to data_batch_5.bin and test_batch.bin, as
    CIFAR-10's home page has them, or the same names with .webp as mosaics, with the
    images row by row as tiles of 32 x 32, and labels.npy: a byte per image, in the
    order of these files. The checksums of the binary files are verified in both cases.
    """
    for place in (folder, folder / IN_ARCHIVE):
        if (place / f"{PARTS[0]}.bin").exists():
            return _read_binary(place)
    if (folder / "labels.npy").exists():
        return _read_mosaics(folder)
    raise FileNotFoundError(
        f"{str(folder)!r} must hold CIFAR-10, as data_batch_1.bin to test_batch.bin or "
        "as mosaics with labels.npy, and has neither. With --download the binary files "
        "are fetched into it."
    )


def prepared(images: Images, *, side: int, count: int | None = None) -> Images:
    """The first `count` images, averaged to `side` x `side`, as networks take them.

    Pixels become single-precision numbers of zero mean and unit variance in each
    channel: mean and variance are those of all pixels of CIFAR-10's training images.
    """
    mean, std = (torch.tensor(x).reshape(3, 1, 1) for x in (MEAN, STD))
    if len(images.labels) < (count or 0):
        raise ValueError(
            f"There must be {count} images for training, got {len(images.labels)}."
        )
    pixels = images.pixels[:count].float() / 255
    pixels = torch.nn.functional.avg_pool2d(pixels, SIDE // side)
    return Images((pixels - mean) / std, images.labels[:count])


def is_right(part: str, content: bytes) -> bool:
    """Whether these bytes are a part of CIFAR-10, by their checksum."""
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return digest == MD5[part]


def _read_binary(folder: Path) -> tuple[Images, Images]:
    files = {part: folder / f"{part}.bin" for part in PARTS}
    return _images(
        [_records(part, path, path.read_bytes()) for part, path in files.items()]
    )


def _read_mosaics(folder: Path) -> tuple[Images, Images]:
    labels = np.load(folder / "labels.npy", allow_pickle=False)
    flat = labels.dtype == np.uint8 and labels.ndim == 1 and labels.size
    if not flat or labels.size % len(FILES) or labels.max() >= CLASSES:
        raise ValueError(
            f"labels.npy must be a row of bytes under {CLASSES}, equally many for each "
            f"of {len(FILES)} mosaics, got {labels.dtype} of shape {labels.shape}."
        )
    found = []
    for part, name, own in zip(PARTS, FILES, np.split(labels, len(FILES))):
        tiles = _tiles(folder / name, own.size)  # (count, 3 * 32 * 32)
        content = np.concatenate([own[:, None], tiles], axis=1).tobytes()
        found.append(_records(part, folder / name, content))
    return _images(found)


def _records(part: str, path: Path, content: bytes) -> np.ndarray:
    """The records of a verified part: a byte for the label, three planes of 32 x 32."""
    if not is_right(part, content):
        raise ValueError(
            f"{str(path)!r} must be CIFAR-10's, with the MD5 checksum {MD5[part]} as a "
            "binary file, and is not. Copy it again, or remove it and add --download."
        )
    return np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * SIDE**2)


def _images(parts: list[np.ndarray]) -> tuple[Images, Images]:
    """For training, and of the last part for the test."""
    train, test = (
        Images(
            torch.from_numpy(rows[:, 1:].reshape(-1, 3, SIDE, SIDE)),
            torch.from_numpy(rows[:, 0].astype(np.int64)),
        )
        for rows in (np.concatenate(parts[:-1]), parts[-1].copy())
    )
    return train, test


def _tiles(path: Path, count: int) -> np.ndarray:
    """The tiles of a mosaic, row by row, each as the bytes of its three planes."""
    from PIL import Image

    with Image.open(path) as image:  # which reads no more than the header
        (width, height), mode = image.size, image.mode
        down, right = height // SIDE, width // SIDE
        whole = (height, width) == (down * SIDE, right * SIDE)
        if not whole or down * right != count or mode != "RGB":
            raise ValueError(
                f"{path.name} must hold {count} RGB tiles of {SIDE} x {SIDE}, "
                f"got {mode} of {width} x {height}."
            )
        mosaic = np.asarray(image).reshape(down, SIDE, right, SIDE, 3)
    return mosaic.transpose(0, 2, 4, 1, 3).reshape(count, -1)
