"""CIFAR-10's binary files and their download, from a server that breaks off."""

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from experiments import download, images  # noqa: E402

EACH = 3


@pytest.fixture
def parts(rng, monkeypatch):
    """Six files of three images, by name, with their checksums known."""
    size = (EACH, 1 + 3 * 32**2)
    made = {}
    for name in images.PARTS:
        records = rng.integers(256, size=size, dtype=np.uint8)
        records[:, 0] %= 10
        made[name] = records
    digests = {name: hashlib.md5(x.tobytes()).hexdigest() for name, x in made.items()}
    monkeypatch.setattr(images, "MD5", digests)
    return made


def write(folder, parts):
    folder.mkdir(parents=True)
    for name, records in parts.items():
        (folder / f"{name}.bin").write_bytes(records.tobytes())


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_binary_files_are_read(tmp_path, parts, inner):
    write(tmp_path / "data" / inner, parts)
    train, test = images.read_cifar10(tmp_path / "data")
    assert (len(train.labels), len(test.labels)) == (5 * EACH, EACH)
    want = parts["data_batch_2"][1]
    assert train.labels[EACH + 1] == want[0]
    # Red, green and blue planes, each row by row.
    assert train.pixels[EACH + 1, 1, 2, 3] == want[1 + 1024 + 2 * 32 + 3]
    assert test.pixels[2, 0, 0, 0] == parts["test_batch"][2, 1]


def test_a_damaged_file_is_refused(tmp_path, parts):
    write(tmp_path / "data", parts)
    (tmp_path / "data" / "data_batch_4.bin").write_bytes(b"x" * 3073)
    with pytest.raises(ValueError, match=r"data_batch_4\.bin' must be CIFAR-10's"):
        images.read_cifar10(tmp_path / "data")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"labels\.npy, and has neither"):
        images.read_cifar10(tmp_path)


def test_images_are_averaged_and_normalized(rng):
    pixels = torch.from_numpy(rng.integers(256, size=(4, 3, 32, 32), dtype=np.uint8))
    found = images.prepared(images.Images(pixels, torch.arange(4)), side=16, count=2)
    corner = pixels[1, 2, 4:6, 6:8].numpy().mean() / 255
    want = (corner - images.MEAN[2]) / images.STD[2]
    assert found.pixels[1, 2, 2, 3] == pytest.approx(want, abs=1e-6)
    assert found.labels.tolist() == [0, 1]


@pytest.fixture
def server(parts, monkeypatch):
    """A server of the archive that sends half of it the first time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, records in parts.items():
            info = tarfile.TarInfo(f"{images.IN_ARCHIVE}/{name}.bin")
            info.size = records.nbytes
            tar.addfile(info, io.BytesIO(records.tobytes()))
    archive, asked = buffer.getvalue(), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Range"])
            start = int((asked[-1] or "bytes=0-")[6:-1])
            body = archive[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if start else body[: len(body) // 2])

        def log_message(self, *_):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setattr(download, "MD5", hashlib.md5(archive).hexdigest())
    address = f"http://127.0.0.1:{http.server_port}/archive"
    monkeypatch.setattr(download, "ADDRESS", address)
    yield asked, len(archive)
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_download_goes_on_where_it_was(tmp_path, parts, server):
    asked, size = server
    with pytest.raises(OSError, match="What has come is kept: run this again"):
        download.download_cifar10(tmp_path)
    download.download_cifar10(tmp_path)
    assert asked == [None, f"bytes={size // 2}-"]
    train, _ = images.read_cifar10(tmp_path)
    assert train.labels[0] == parts["data_batch_1"][0, 0]
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".bin"] * 6
    download.download_cifar10(tmp_path)  # all is there
    assert len(asked) == 2


def test_another_archive_is_removed(tmp_path, server, monkeypatch):
    monkeypatch.setattr(download, "MD5", "0" * 32)
    with pytest.raises(OSError, match="is kept"):
        download.download_cifar10(tmp_path)
    with pytest.raises(OSError, match=r"must have the MD5 checksum 0000.* was removed"):
        download.download_cifar10(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_archive_that_somebody_fetched_is_verified_and_left(tmp_path, server):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"half of it")
    with pytest.raises(OSError, match=r"gz' must have the MD5.* Remove it: run this"):
        download.download_cifar10(tmp_path)
    assert archive.exists()
    assert server[0] == []


def test_too_few_images_are_refused():
    few = images.Images(torch.zeros(2, 3, 32, 32), torch.arange(2))
    with pytest.raises(ValueError, match="There must be 3 images for training, got 2"):
        images.prepared(few, side=16, count=3)
