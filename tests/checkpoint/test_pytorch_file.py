"""PyTorch's files: what torch itself says of them, and what is refused unloaded."""

import collections
import io
import math
import pickle
import re
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
from optional import needed
from real_data import real_data

import convspectra as cs
from convspectra._checkpoint.pytorch_file import read_pytorch
from convspectra._checkpoint.pytorch_pickle import PickleWalk
from convspectra._checkpoint.stored import Refusal

torch = needed("torch")
PLAIN = "must hold a plain state dict, got"


@pytest.fixture(params=["zip", "legacy"])
def save(request, tmp_path):
    """Saves an object in one of the two formats; returns the path."""

    def saved(found, name="net.pt"):
        zipped = request.param == "zip"
        torch.save(found, tmp_path / name, _use_new_zipfile_serialization=zipped)
        return tmp_path / name

    return saved


@pytest.fixture
def unreached(monkeypatch):
    """torch must not be asked to load what a look at the file has refused."""
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("was loaded"))


def kernels_of(path):
    return {kernel.name: kernel for kernel in read_pytorch(path).kernels}


def matrix_of(module, *shape):
    """The matrix of a module without bias, by showing it every basis vector."""
    basis = torch.eye(math.prod(shape)).reshape(-1, *shape)
    with torch.no_grad():
        return module(basis).flatten(1).T.numpy()


def test_kernels_make_the_matrices_of_their_modules(save):
    module = torch.nn.ModuleDict(
        {
            "conv": torch.nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=False),
            "up": torch.nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1, bias=False),
            "line": torch.nn.Conv1d(2, 3, 2, dilation=2, bias=False),
        }
    )
    found = kernels_of(save(module.state_dict()))
    zeros = {"boundary": "zeros"}
    cases = {
        "conv": ((4, 5, 6), {"stride": 2, "padding": 1, "groups": 2} | zeros),
        "up": (
            (4, 3, 4),
            {"stride": 2, "padding": 1, "output_padding": 1, "transposed": True}
            | zeros,
        ),
        "line": ((2, 7), {"dilation": 2, "padding": 0} | zeros),
    }
    assert list(found) == [f"{name}.weight" for name in cases]
    for name, (shape, geometry) in cases.items():
        kernel = found[f"{name}.weight"]
        assert kernel.stated == {}
        weight = kernel.load()
        assert weight.shape == kernel.shape
        stated = {"grid": shape[1:], **geometry, **kernel.stated}
        got = cs.dense_matrix(weight, cs.Geometry(**stated))
        want = matrix_of(module[name], *shape)
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float64", "float64"),
        ("complex64", "complex64"),
        ("complex128", "complex128"),
    ],
)
def test_dtypes_there_and_back(save, tmp_path, dtype, name):
    torch.manual_seed(0)
    tensor = torch.randn(3, 2, 3).to(getattr(torch, dtype))
    path = save({"k": tensor, "same": tensor})
    found = kernels_of(path)["k"]
    assert found.load().dtype.name == name
    assert np.array_equal(found.load().astype("c16"), tensor.to(torch.complex128))
    read_pytorch(path).write(tmp_path / "new.pt", {"k": -found.load()})
    for new in torch.load(tmp_path / "new.pt", weights_only=True).values():
        assert torch.equal(new, -tensor)  # both: the two are one tensor


def test_conjugates_are_read_as_such(save, tmp_path):
    tensor = torch.tensor([1 + 2j, 3j]).reshape(1, 1, 2)
    negative = tensor.clone().conj().imag
    assert negative.is_neg()
    network = read_pytorch(save({"k": tensor.conj(), "part": negative}))
    found = [kernel.load().tolist() for kernel in network.kernels]
    assert found == [[[[1 - 2j, -3j]]], [[[-2, -3]]]]
    network.write(tmp_path / "n.pt", {"k": 2 * network.kernels[0].load()})
    new = torch.load(tmp_path / "n.pt", weights_only=True)
    assert torch.equal(new["k"], 2 * tensor.conj())


def test_numbers_are_copies(save):
    kernel = kernels_of(save({"k": torch.ones(1, 1, 3)}))["k"]
    kernel.load()[:] = 7
    assert kernel.load().max() == 1


def test_views_are_read_and_written_in_place(save, tmp_path):
    whole = torch.arange(24.0).reshape(2, 3, 4)
    path = save({"turned": whole.permute(2, 0, 1), "rows": whole[:, 1:, ::2]})
    found = kernels_of(path)
    np.testing.assert_array_equal(found["turned"].load(), whole.permute(2, 0, 1))
    np.testing.assert_array_equal(found["rows"].load(), whole[:, 1:, ::2])
    read_pytorch(path).write(tmp_path / "n.pt", {"rows": 0 * found["rows"].load()})
    new = torch.load(tmp_path / "n.pt", weights_only=True)
    want = whole.clone()
    want[:, 1:, ::2] = 0
    assert torch.equal(new["turned"], want.permute(2, 0, 1))


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_a_state_dict_inside_a_checkpoint(save, tmp_path, key):
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 2, 4, 4)).sum().backward()
    optimizer.step()
    found = {
        "epoch": 3,
        key: module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "milestones": collections.Counter({30: 1}),
        "others": [{1, 2}, b"\xff", 1j, torch.Size([2]), torch.device("cpu")],
        "best": 0.5,
    }
    path = save(found)
    network = read_pytorch(path)
    assert [kernel.name for kernel in network.kernels] == ["0.weight"]
    beside = ["epoch", "optimizer", "milestones", "others", "best"]
    assert list(network.skipped[:5]) == [
        (n, "is beside the state dict") for n in beside
    ]
    reasons = dict(network.skipped)
    assert reasons["1.running_mean"] == "has fewer than 3 axes"
    assert reasons["1.num_batches_tracked"] == "holds int64, not floating point"
    network.write(tmp_path / "new.pt", {"0.weight": 2 * network.kernels[0].load()})
    new = torch.load(tmp_path / "new.pt", weights_only=True)
    assert zipfile.is_zipfile(tmp_path / "new.pt") == zipfile.is_zipfile(path)
    assert torch.equal(new[key]["0.weight"], 2 * module[0].weight)
    assert new[key]._metadata == found[key]._metadata
    module[0].weight.data *= 2
    assert_equal(new, found)


def assert_equal(new, old):
    assert type(new) is type(old)
    if isinstance(old, dict):
        assert list(new) == list(old)
        for key in old:
            assert_equal(new[key], old[key])
    elif isinstance(old, list):
        assert len(new) == len(old)
        for a, b in zip(new, old):
            assert_equal(a, b)
    elif isinstance(old, torch.Tensor):
        assert torch.equal(new, old)
    else:
        assert new == old


def test_dicts_in_dicts_have_joined_names(save, tmp_path):
    found = {
        "net": {"conv": {"weight": torch.ones(1, 1, 3)}, 0: torch.ones(1, 2, 3)},
        "optim": torch.optim.SGD(
            [torch.nn.Parameter(torch.ones(1, 1, 3))], 0.1
        ).state_dict(),
        "net.0": torch.zeros(1, 1, 3),
        "table": torch.ones(4, 5),
        "fc.weight": torch.nn.Parameter(torch.ones(4, 5)),
        "list": [torch.ones(1, 1, 3)],
    }
    path = save(found)
    network = read_pytorch(path)
    names = {kernel.name: kernel.by_shape for kernel in network.kernels}
    convolutions = {"net.conv.weight": False, "net.0": False}
    assert names == convolutions | {"table": True, "fc.weight": True}
    assert dict(network.skipped) == {
        "optim": "is no tensor",
        "net.0": "has the name of another tensor",
        "list": "is no tensor",
    }
    network.write(tmp_path / "n.pt", {"net.0": np.zeros((1, 2, 3), "f4")})
    new = torch.load(tmp_path / "n.pt", weights_only=True)
    assert not new["net"][0].any()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_of_other_kinds_are_skipped(tmp_path, monkeypatch):
    # Which has torch's names, too: pickle would find them there.
    monkeypatch.delitem(sys.modules, "array_api_compat.torch", raising=False)
    path = tmp_path / "k.pt"
    found = {
        "quantized": torch.quantize_per_tensor(torch.ones(1, 1, 3), 1, 0, torch.qint8),
        "sparse": torch.ones(1, 2, 3).to_sparse(),
        "meta": torch.ones(1, 1, 3, device="meta"),
        "empty": torch.ones(0, 1, 3),
        "wide": torch.ones(1).expand(1000, 100, 3),
        "eight": torch.ones(1, 1, 3).to(torch.float8_e4m3fn),
        "repeated": torch.ones(1).expand(2, 2, 3),
    }
    torch.save(found, path)
    network = read_pytorch(path)
    assert [
        (kernel.name, kernel.not_writable_because) for kernel in network.kernels
    ] == [("repeated", "has one number in several places")]
    assert dict(network.skipped) == {
        "quantized": "is quantized or sparse",
        "sparse": "is quantized or sparse",
        "meta": "has a shape alone, and no numbers",
        "empty": "has no entries",
        "wide": "repeats its numbers beyond the size of the file",
        "eight": "holds float8_e4m3fn, not floating point",
    }


def test_what_is_written_is_checked(save, tmp_path):
    shared = torch.ones(1, 1, 3)
    path = save({"a": shared, "b": shared})
    network = read_pytorch(path)
    ones = np.ones((1, 1, 3), "float32")
    for arrays, message in [
        ({"a": np.ones((1, 1, 3))}, "must keep shape"),
        ({"a": ones[0]}, "must keep shape"),
        ({"a": ones * np.nan}, "must stay finite"),
        ({"a": ones, "b": 2 * ones}, "'a' shares its numbers with another tensor"),
    ]:
        with pytest.raises(ValueError, match=message):
            network.write(tmp_path / "new.pt", arrays)
    assert [p.name for p in tmp_path.iterdir()] == ["net.pt"]


class Call:
    """Pickled as a call."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


WIDE = torch.ones(1).expand(10**9, 2)
CALLS = {
    "code": Call(pytest.fail, "this was unpickled"),
    "bytes of any length": Call(bytearray, 2**34),
    "tensor of any size": Call(torch.FloatTensor, 2**33),
    "set of rows": Call(set, WIDE),
    "dict of rows": Call(collections.OrderedDict, WIDE),
    "dict of a pair of rows": Call(collections.OrderedDict, [WIDE]),
    "shape of rows": Call(torch.Size, WIDE),
    "axes": torch.ones(1).reshape((1,) * 65),
    "codec": Call(pickle.codecs.encode, "text", "zlib"),
    "module": torch.nn.Conv2d(1, 1, 3),
    "subclass": torch.nn.UninitializedParameter(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_nothing_but_a_state_dict_is_loaded(save, unreached, call):
    with pytest.raises(Refusal, match=PLAIN):
        read_pytorch(save({"k": torch.ones(1, 1, 3), "other": CALLS[call]}))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_that_repeat_are_refused(save, unreached):
    # torch makes room for all of their entries before it looks at the storage.
    small = torch.quantize_per_tensor(torch.ones(1), 1, 0, torch.qint8)
    with pytest.raises(Refusal, match=f"{PLAIN} a quantized tensor that repeats"):
        read_pytorch(save({"k": small.as_strided((10**6, 10**4), (0, 0))}))


def test_copies_of_copies_are_refused(save, unreached):
    pairs = Call(collections.OrderedDict, [(i, i) for i in range(10**4)])
    for function, items in ((set, list(range(10**4))), (collections.Counter, pairs)):
        with pytest.raises(Refusal, match=f"{PLAIN} many copies"):
            read_pytorch(save([Call(function, items) for _ in range(10**4)]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"}K\x01a.", "an object that items are added to"),
        (b"]K\x01K\x02s.", "an object with items or attributes"),
        (b"U\x01\xe9.", "a text that is not ASCII"),
        (b"K\x010.", "an object made by POP"),
        (b"K\x01)R.", "an object made by an object"),
        (b"K\x01)\x81.", "an object made by another"),
        (b"X\x06\0\0\0moduleQ.", "something other than a storage"),
    ],
)
def test_other_pickles_are_refused(data, message):
    with pytest.raises(Refusal, match=f"{PLAIN} {message}"):
        PickleWalk(100, lambda _: 4).through(io.BytesIO(b"\x80\x02" + data))


def nested_tuple(depth):
    found = ()
    for _ in range(depth):
        found = (found, found)
    return found


@pytest.mark.parametrize(
    "keyed",
    [
        lambda key: {key: 1},
        lambda key: {"k": {key}},
        lambda key: Call(collections.OrderedDict, [(key, 1)]),
    ],
)
def test_keys_that_take_forever_to_hash_are_refused(save, unreached, keyed):
    # Python hashes a tuple by its items, each of them anew: 2**depth of them here.
    with pytest.raises(Refusal, match=f"{PLAIN} a key of tuples in tuples"):
        read_pytorch(save(keyed(nested_tuple(3))))


def test_keys_may_be_tuples(save):
    assert read_pytorch(save({("a", 1): torch.ones(1, 1, 3)})).kernels


def test_attributes_of_dicts_are_refused(save, unreached):
    found = collections.OrderedDict(k=torch.ones(1, 1, 3))
    found.note = 3
    with pytest.raises(Refusal, match=f"{PLAIN} a dict with attributes"):
        read_pytorch(save(found))


def test_what_torch_refuses_is_one_sentence(save):
    with pytest.raises(
        Refusal, match=rf"{PLAIN} one that torch refuses .*GLOBAL getattr"
    ):
        read_pytorch(save({"k": getattr}))


@pytest.mark.parametrize("found", [[torch.ones(1, 1, 3)], 3, torch.ones(1, 1, 3)])
def test_other_objects_are_no_state_dict(save, found):
    with pytest.raises(Refusal, match=f"{PLAIN} a "):
        read_pytorch(save(found))


def test_dicts_that_meet_themselves_are_refused(save):
    inside = {"k": torch.ones(1, 1, 3)}
    cycle = dict(inside)
    cycle["again"] = cycle
    deep = inside
    for _ in range(400):
        deep = {"d": deep}
    for found in (cycle, {"a": inside, "b": inside}, deep):
        with pytest.raises(Refusal, match=f"{PLAIN} a (dict|name)"):
            read_pytorch(save(found))


def rewritten(path, change):
    """Write the pickle of a file anew, after a change of its bytes."""
    if not zipfile.is_zipfile(path):
        path.write_bytes(change(path.read_bytes()))
        return
    copied = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copied, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            data = change(data) if info.filename.endswith("data.pkl") else data
            new.writestr(info.filename, data)
    path.write_bytes(copied.getvalue())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # 77 numbers, of shape (7, 11, 1), in their storage; more than the file has
        (b"KM", b"J\x00\x00\x00\x70", "other storages|another size of storage"),
        (b"KM", b"KN", "other storages|another size of storage"),
        (b"K\x07K\x0bK\x01\x87", b"K\x08K\x0bK\x01\x87", "fewer numbers"),
        (b"K\x07K\x0bK\x01\x87", b"J\x00\x00\x00\x70K\x0bK\x01\x87", "fewer numbers"),
        (b"K\x07K\x0bK\x01\x87", b"J\xff\xff\xff\xffK\x0bK\x01\x87", "no whole number"),
        (b"K\x07K\x0bK\x01\x87", b"K\x07K\x0b\x86", "a tensor without numbers"),
        (b"FloatStorage", b"DoubleStorage", "size of storage|other storages"),
        (b"FloatStorage", b"OtherStorage", "numbers of the kind torch.OtherStorage"),
        (b"ctorch\nFloat", b"cother\nFloat", "numbers of the kind other.FloatStorage"),
    ],
)
def test_sizes_beyond_the_file_are_refused(save, unreached, old, new, message):
    path = save({"k": torch.ones(7, 11, 1)})
    before = path.read_bytes()
    rewritten(path, lambda data: data.replace(old, new, 1))
    assert path.read_bytes() != before
    with pytest.raises(Refusal, match=message):
        read_pytorch(path)


def test_a_storage_with_two_sizes_is_refused():
    class Pickler(pickle.Pickler):
        def persistent_id(self, found):
            size = {"three": 3, "four": 4}.get(found) if type(found) is str else None
            return size and ("storage", torch.FloatStorage, "0", "cpu", size)

    stream = io.BytesIO()
    Pickler(stream, 2).dump(("three", "four"))
    stream.seek(0)
    with pytest.raises(Refusal, match=f"{PLAIN} one storage with two sizes"):
        PickleWalk(100, lambda _: 4).through(stream)


def test_storages_that_are_stated_and_not_stored_are_refused(tmp_path, unreached):
    path = tmp_path / "k.pt"
    torch.save({"k": torch.ones(7)}, path, _use_new_zipfile_serialization=False)
    old = path.read_bytes()
    path.write_bytes(re.sub(rb"\]q\x00X....\d+q\x01a\.", b"]q\x00.", old))
    assert path.stat().st_size < len(old)
    with pytest.raises(Refusal, match=f"{PLAIN} other storages"):
        read_pytorch(path)


def repacked(path, compression=zipfile.ZIP_STORED, twice="", drop=""):
    copied = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copied, "w") as new:
        for info in old.infolist():
            if drop and info.filename.endswith(drop):
                continue
            new.writestr(info.filename, old.read(info), compression)
            if twice and info.filename.endswith(twice):
                with pytest.warns(UserWarning, match="Duplicate"):
                    new.writestr(info.filename, old.read(info))
    path.write_bytes(copied.getvalue())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"compression": zipfile.ZIP_DEFLATED},
            "must not be compressed, nor be larger",
        ),
        ({"twice": "/0"}, "must have different names"),
        ({"drop": "data.pkl"}, "a compiled model, or another kind"),
        ({"drop": "/0"}, "another size of storage '0'"),
    ],
)
def test_archives_are_checked_first(tmp_path, unreached, options, message):
    path = tmp_path / "k.pt"
    torch.save({"k": torch.zeros(10, 10, 100)}, path)
    repacked(path, **options)
    with pytest.raises(Refusal, match=message):
        read_pytorch(path)


def test_an_archive_within_the_archive_is_not_read(tmp_path):
    # Two directories at the end: Python takes the last, whatever another reader does.
    torch.save({"k": torch.ones(1, 1, 3)}, tmp_path / "a.pt")
    torch.save({"other": torch.ones(1, 1, 3)}, tmp_path / "b.pt")
    both = (tmp_path / "a.pt").read_bytes() + (tmp_path / "b.pt").read_bytes()
    (tmp_path / "both.pt").write_bytes(both)
    assert list(kernels_of(tmp_path / "both.pt")) == ["other"]


def test_compiled_models_are_refused(tmp_path):
    path = tmp_path / "k.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", pickle.dumps({}, 2))
        archive.writestr("net/constants.pkl", pickle.dumps((), 2))
    with pytest.raises(Refusal, match="a compiled model"):
        read_pytorch(path)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"text", pickle.dumps({}, 2)])
def test_what_is_no_pytorch_file_is_refused(tmp_path, unreached, data):
    (tmp_path / "k.pt").write_bytes(data)
    with pytest.raises(Refusal, match=r"PyTorch file must|must be a (whole )?PyTorch"):
        read_pytorch(tmp_path / "k.pt")


def test_missing_files_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"k\.pt"):
        read_pytorch(tmp_path / "k.pt")


def resnet_shapes(blocks):
    """Convolutions of the ResNets for CIFAR-10: three stages, two of each block."""
    widths = [16, *[16] * 2 * blocks, *[32] * 2 * blocks, *[64] * 2 * blocks]
    convolutions = [(o, i, 3, 3) for i, o in zip([3, *widths], widths)]
    return convolutions


REAL = {
    "resnet20-12fca82f.th": resnet_shapes(3),
    "resnet56-4bfd9763.th": resnet_shapes(9),
    "mtcnn_pnet.pt": [
        (10, 3, 3, 3),
        (16, 10, 3, 3),
        (32, 16, 3, 3),
        (2, 32, 1, 1),
        (4, 32, 1, 1),
    ],
    "mtcnn_rnet.pt": [
        (28, 3, 3, 3),
        (48, 28, 3, 3),
        (64, 48, 2, 2),
    ],
    "mtcnn_onet.pt": [
        (32, 3, 3, 3),
        (64, 32, 3, 3),
        (64, 64, 3, 3),
        (128, 64, 2, 2),
    ],
}


@pytest.mark.parametrize("name", REAL)
def test_real_networks_have_the_kernels_of_their_architecture(name):
    kernels = read_pytorch(real_data(name)).kernels
    assert [kernel.shape for kernel in kernels if not kernel.linear] == REAL[name]


def test_a_real_network_there_and_back(tmp_path):
    path = real_data("ultraface_RFB-320.pth")
    found = torch.load(path, weights_only=True, map_location="cpu")
    kernels = kernels_of(path)
    assert set(kernels) == {name for name, t in found.items() if t.ndim == 4}
    arrays = {}
    for name, kernel in kernels.items():
        np.testing.assert_array_equal(kernel.load(), found[name])
        arrays[name] = kernel.load() / 2
    read_pytorch(path).write(tmp_path / "new.pth", arrays)
    new = torch.load(tmp_path / "new.pth", weights_only=True)
    for name in arrays:
        new[name] *= 2
    assert_equal(new, found)


def test_bfloat16_is_that_of_ml_dtypes(tmp_path):
    torch.save({"k": torch.ones(1, 1, 3, dtype=torch.bfloat16)}, tmp_path / "k.pt")
    (kernel,) = read_pytorch(tmp_path / "k.pt").kernels
    assert kernel.load().dtype == ml_dtypes.bfloat16
