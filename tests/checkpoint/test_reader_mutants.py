"""Damaged files of every format: each one reads or is refused, and that is all."""

import io
import json
import random
import shutil
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from optional import needed
from real_data import real_data

from convspectra._checkpoint import read_network

h5py = needed("h5py")
torch = needed("torch")

MEMORY = 2**26  # beyond what there was before; all the files here are small
REAL = ("mtcnn_pnet.pt", "mlperf_tiny_resnet8_cifar10.h5", "fer_mini_xception.hdf5")
SLOW = (".h5", ".hdf5", ".keras", ".jit")  # a process for each
WORKERS = ("hdf5_worker.py", "torchscript_worker.py")
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "socket.connect")
watched = []


def kernels():
    numbers = np.random.default_rng(0).standard_normal((3, 2, 3, 3))
    return {"a": numbers.astype("float32"), "b/c": numbers, "bias": numbers[0, 0, 0]}


def config():
    layer = {"name": "c", "filters": 3, "kernel_size": [3, 3], "padding": "same"}
    layers = [{"class_name": "Conv2D", "config": layer | {"strides": [2, 1]}}]
    return json.dumps({"class_name": "Sequential", "config": {"layers": layers}})


def save_npy(path):
    np.save(path, kernels()["a"])


def save_npz(path):
    np.savez_compressed(path, **kernels())


def save_safetensors(path):
    safetensors.numpy.save_file(kernels(), path, {"format": "pt"})


def save_index(path):
    save_safetensors(path.parent / "one.safetensors")
    index = dict.fromkeys(kernels(), "one.safetensors")
    path.write_text(json.dumps({"weight_map": index}))


def save_torch(path):
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    found = {"state_dict": module.half().state_dict(), "epoch": 3, "lr": [0.1, None]}
    legacy = path.suffix == ".th"
    torch.save(found, path, _use_new_zipfile_serialization=not legacy)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
        self.b = torch.nn.ConvTranspose2d(4, 2, 3, 2, groups=2)
        self.c = torch.nn.Linear(2, 3)

    def forward(self, x):
        return self.c(self.b(self.a(x)).mean((2, 3)))


def save_export(path):
    height = {2: torch.export.Dim("height", min=4, max=64)}
    example = (torch.zeros(1, 3, 8, 8),)
    program = torch.export.export(Small().eval(), example, dynamic_shapes=(height,))
    torch.export.save(program, path)


def save_script(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Small().eval()).save(path)


def save_tflite(path):
    tf = needed("tensorflow")
    kernel = tf.constant(np.ones((3, 3, 8, 16)), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec((1, 6, 6, 8))])
    def model(x):
        return tf.nn.relu(tf.nn.conv2d(x, kernel, 2, "SAME"))

    functions = [model.get_concrete_function()]
    converter = tf.lite.TFLiteConverter.from_concrete_functions(functions, None)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]  # which makes integers
    path.write_bytes(converter.convert())


def save_model(path):
    tf = needed("tensorflow")
    module = tf.Module()
    module.kernel = tf.Variable(tf.ones((3, 3, 2, 4)))

    @tf.function(input_signature=[tf.TensorSpec((1, 6, 6, 2))])
    def call(x):
        return {"y": tf.nn.conv2d(x, module.kernel, 2, "SAME")}

    module.call = call
    tf.saved_model.save(module, str(path.parent), signatures=call)


def save_h5(path):
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = config()
        group = file.create_group("model_weights")
        group.attrs["layer_names"] = [b"c"]
        group = group.create_group("c")
        group.attrs["weight_names"] = [b"c/kernel:0", b"c/bias:0"]
        group["c/kernel:0"] = np.moveaxis(kernels()["a"], (0, 1), (-1, -2))
        group.create_dataset("c/bias:0", data=np.ones(3), compression="gzip")


def save_keras(path):
    inner = io.BytesIO()
    with h5py.File(inner, "w") as file:
        file["layers/conv2d/vars/0"] = np.moveaxis(kernels()["a"], (0, 1), (-1, -2))
        file["layers/conv2d/vars"].attrs["name"] = "c"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", config())
        archive.writestr("model.weights.h5", inner.getvalue())


FILES = {
    "k.npy": save_npy,
    "k.npz": save_npz,
    "k.safetensors": save_safetensors,
    "k.safetensors.index.json": save_index,
    "k.pt": save_torch,
    "k.th": save_torch,
    "k.pt2": save_export,
    "k.jit": save_script,
    "k.h5": save_h5,
    "k.keras": save_keras,
}


# Whose makers take long to start.
LONG = {"k.tflite": save_tflite, "saved_model.pb": save_model}


def damaged(data, rng):
    """A few bits turned, a number changed, or a span cut, doubled or left out."""
    data, at = bytearray(data), rng.randrange(max(len(data), 1))
    match rng.randrange(8):
        case 0 | 1 | 2:
            for _ in range(rng.choice([1, 1, 2, 5])):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 3 | 4:
            size = rng.choice([1, 2, 4, 8])
            big = rng.choice([b"\xff", b"\x00", b"\x7f", b"\x10"])
            data[at : at + size] = rng.choice([big * size, rng.randbytes(size)])
        case 5:
            del data[at:]
        case 6:
            data[at:at] = data[at : at + rng.randrange(1, 200)]
        case 7:
            del data[at : at + rng.randrange(1, 200)]
    return bytes(data)


def damaged_file(data, rng):
    """Damage to a file, or to one member of it that has the right sum again."""
    if not data.startswith(b"PK") or rng.randrange(2):
        return damaged(data, rng)
    copied = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(copied, "w") as new:
        chosen = rng.choice([info for info in old.infolist() if info.file_size])
        for info in old.infolist():
            content = old.read(info)
            content = damaged(content, rng) if info is chosen else content
            new.writestr(info.filename, content)
    return copied.getvalue()


def watch(event, args):
    if event in FORBIDDEN or event == "pickle.find_class":
        watched.append((event, args))
    known = any(worker in str(args) for worker in WORKERS)
    if event == "subprocess.Popen" and not known:
        watched.append((event, args))


@pytest.fixture(scope="module")
def watching():
    """Whether anything is run or unpickled; a hook can never be taken off again."""
    sys.addaudithook(watch)
    return watched


def peak():
    """The most memory that the process has had since the last call."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(s for s in status.read_text().splitlines() if s.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(line.split()[1]) * 1024


def campaign(path, count, watching):
    """Read mutants of a file; return how many were read and how many refused."""
    watching.clear()
    data = path.read_bytes()
    read = refused = 0
    for network in (read_network(path), read_network(path)):
        assert [kernel.load() for kernel in network.kernels]
    peak()
    before = peak()
    for seed in range(count):
        path.write_bytes(damaged_file(data, random.Random(f"{path.name} {seed}")))
        try:
            for kernel in read_network(path).kernels:
                assert kernel.load().shape == kernel.shape, seed
        except (ValueError, OSError) as error:
            refused += bool(str(error))
        else:
            read += 1
    assert peak() - before < MEMORY
    assert not watching
    return read, refused


@pytest.mark.parametrize("name", FILES)
def test_some_damaged_files(tmp_path, watching, name):
    FILES[name](tmp_path / name)
    count = 4 if name.endswith(SLOW) else 40
    assert sum(campaign(tmp_path / name, count, watching)) == count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*FILES, *LONG, *REAL])
def test_many_damaged_files(tmp_path, watching, name):
    if name in FILES | LONG:
        (FILES | LONG)[name](tmp_path / name)
    else:
        shutil.copyfile(real_data(name), tmp_path / name)
    count = 300 if name.endswith(SLOW) else 4000
    read, refused = campaign(tmp_path / name, count, watching)
    assert 0 < read < read + refused == count


def test_what_is_run_or_unpickled_is_seen(watching):
    watching.clear()
    torch.load(io.BytesIO(pickled()), weights_only=False)
    assert [event for event, _ in watching] == ["pickle.find_class"]


def pickled():
    buffer = io.BytesIO()
    torch.save(len, buffer)
    return buffer.getvalue()
