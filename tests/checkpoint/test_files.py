"""Files of kernels: every format there and back, and what is refused."""

import io
import json
import pickle
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from convspectra._base import replacing, require
from convspectra._checkpoint import read_network
from convspectra._checkpoint.arrays import contents_of, read_arrays
from convspectra._checkpoint.stored import Entry, Refusal, check_member, parsing
from convspectra._cli.outputs import check_target, write_npz

METADATA = {"format": "pt", "note": "kept"}


@pytest.fixture
def arrays(rng):
    """Kernels of every dtype that is read, between other things."""
    kernel = rng.standard_normal((3, 2, 3, 3))
    return {
        "z.half": kernel.astype("float16"),
        "ids": np.arange(5),
        "single": kernel.astype("float32"),
        "a/double": kernel,
        "bias": np.ones(3),
        "complex": (kernel + 1j).astype("complex64"),
    }


def save_npz(path, arrays, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array)
            archive.writestr(f"{name}.npy", buffer.getvalue())
        archive.comment = b"a comment"


def npy(header, data=b"", version=(1, 0)):
    """The bytes of an .npy file with this header, honest or not."""
    text = repr(header).encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2, "little") + text + data


def header(shape, descr="<f4"):
    return {"descr": descr, "fortran_order": False, "shape": shape}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", ">c16"])
def test_npy_there_and_back(tmp_path, rng, dtype, order):
    kernel = rng.standard_normal((2, 3, 4)).astype(dtype).copy(order=order)
    source, target = tmp_path / "k.npy", tmp_path / "new.npy"
    np.save(source, kernel)
    (kernel_there,) = read_arrays(source, None).kernels
    found = kernel_there.load()
    assert (kernel_there.name, kernel_there.shape) == ("k", (2, 3, 4))
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, kernel)
    read_arrays(source, None).write(target, {"k": 2 * found})
    back = np.load(target)
    np.testing.assert_array_equal(back, 2 * kernel)
    assert back.dtype == kernel.dtype
    assert back.flags.f_contiguous == (order == "F")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_npz_there_and_back(tmp_path, arrays, compression):
    source, target = tmp_path / "k.npz", tmp_path / "new.npz"
    save_npz(source, arrays, compression)
    assert [entry.name for entry in contents_of(source).entries] == list(arrays)
    network = read_arrays(source, None)
    found = {kernel.name: kernel for kernel in network.kernels}
    assert list(found) == ["z.half", "single", "a/double", "complex"]
    for name, kernel in found.items():
        np.testing.assert_array_equal(kernel.load(), arrays[name])
    network.write(target, {"single": -arrays["single"]})
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target) as new:
        assert new.namelist() == old.namelist()
        assert new.comment == old.comment
        assert new.testzip() is None
        for a, b in zip(old.infolist(), new.infolist()):
            assert (a.compress_type, a.date_time) == (b.compress_type, b.date_time)
            assert (old.read(a) == new.read(b)) == (a.filename != "single.npy")
    np.testing.assert_array_equal(np.load(target)["single"], -arrays["single"])


def test_safetensors_there_and_back(tmp_path, arrays):
    source, target = tmp_path / "k.safetensors", tmp_path / "new.safetensors"
    arrays["brain"] = arrays["single"].astype(ml_dtypes.bfloat16)
    safetensors.numpy.save_file(arrays, source, metadata=METADATA)
    network = read_arrays(source, None)
    kernels = {kernel.name: kernel for kernel in network.kernels}
    assert kernels.keys() == {"z.half", "single", "a/double", "complex", "brain"}
    for name, kernel in kernels.items():
        np.testing.assert_array_equal(kernel.load(), arrays[name])
        assert kernel.load().dtype == arrays[name].dtype
    network.write(target, {name: -arrays[name] for name in kernels})
    for name, array in safetensors.numpy.load_file(target).items():
        want = -arrays[name] if name in kernels else arrays[name]
        np.testing.assert_array_equal(array, want)
        assert array.dtype == arrays[name].dtype
    # The header, with its metadata and order, is the same to the byte.
    old, new = source.read_bytes(), target.read_bytes()
    length = 8 + int.from_bytes(old[:8], "little")
    assert old[:length] == new[:length]
    assert json.loads(new[8:length])["__metadata__"] == METADATA


def test_a_copy_may_replace_its_source(tmp_path, arrays):
    path = tmp_path / "k.npz"
    save_npz(path, arrays)
    read_arrays(path, None).write(path, {"single": 0 * arrays["single"]})
    assert not np.load(path)["single"].any()
    np.testing.assert_array_equal(np.load(path)["ids"], arrays["ids"])


def test_values_may_have_any_name(tmp_path):
    arrays = {"file": np.ones(2), "allow_pickle": np.zeros(3), "a/b": np.ones((2, 2))}
    write_npz(tmp_path / "v.npz", arrays)
    with np.load(tmp_path / "v.npz") as found:
        assert list(found) == list(arrays)
        np.testing.assert_array_equal(found["a/b"], arrays["a/b"])


def test_shape_and_dtype_are_kept_or_refused(tmp_path):
    path = tmp_path / "k.npy"
    np.save(path, np.ones((1, 1, 3), "float32"))
    for other in (np.ones((1, 1, 3)), np.ones((1, 1, 4), "float32")):
        with pytest.raises(ValueError, match=r"must keep shape \(1, 1, 3\) and dtype"):
            read_arrays(path, None).write(tmp_path / "new.npy", {"k": other})
    assert not (tmp_path / "new.npy").exists()


def test_what_is_not_finite_is_not_written(tmp_path):
    path = tmp_path / "k.npy"
    np.save(path, np.ones((1, 1, 3)))
    with pytest.raises(ValueError, match="'k' must stay finite"):
        read_arrays(path, None).write(path, {"k": np.full((1, 1, 3), np.nan)})
    np.testing.assert_array_equal(np.load(path), np.ones((1, 1, 3)))


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("this was unpickled",))


def test_pickled_objects_are_never_loaded(tmp_path):
    bomb = np.array([[[Bomb()]]], dtype=object)
    np.save(tmp_path / "k.npy", bomb)
    np.savez(tmp_path / "k.npz", bomb=bomb, kernel=np.ones((1, 1, 3)))
    (alone,) = contents_of(tmp_path / "k.npy").entries
    among = contents_of(tmp_path / "k.npz").entries
    for entry in (alone, among[0]):
        assert entry.unsuitable == "holds pickled objects, which are never loaded"
    read_arrays(tmp_path / "k.npz", None).write(
        tmp_path / "new.npz", {"kernel": np.zeros((1, 1, 3))}
    )
    with zipfile.ZipFile(tmp_path / "new.npz") as archive:
        kept = archive.read("bomb.npy")
    with pytest.raises(pytest.fail.Exception):  # it is still there, and armed
        pickle.loads(kept[kept.index(b"\n") + 1 :])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((10**5, 10**5, 10**5), "must have 4000000000000000 bytes, got 36"),
        ((-1, 3, 3), r"must not be negative, got \(-1, 3, 3\)"),
        ((2**62, 4, 4), "bytes, got 36"),
        ((2, 2, 2), "must have 32 bytes, got 36"),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_header_is_checked_before_anything_is_read(tmp_path, shape, message, suffix):
    path, data = tmp_path / f"k{suffix}", npy(header(shape), bytes(36))
    if suffix == ".npy":
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("k.npy", data)
    with pytest.raises(ValueError, match=message):
        contents_of(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        b"\x93NUMPY\x09\x00",
        npy("not a dict"),
        npy(header((1, 1, 1), "<q9")),
        npy({"descr": "<f4"}),
        npy(header((1, 1, "x"))),
        npy(header((1, 1, 1)), bytes(4), version=(7, 7)),
    ],
)
def test_damaged_headers_are_refused(tmp_path, data):
    (tmp_path / "k.npy").write_bytes(data)
    with pytest.raises(ValueError, match=r"must be a whole \.npy array, got one"):
        contents_of(tmp_path / "k.npy")


def test_a_bomb_is_refused_by_the_directory(tmp_path):
    path = tmp_path / "k.npz"
    save_npz(path, {"k": np.zeros((1, 1, 999))}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("k.npy").file_size.to_bytes(4, "little")
    at = data.index(size, data.index(b"PK\x01\x02"))
    data[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match="must have 7992 bytes, got 42949671"):
        contents_of(path)
    big = zipfile.ZipInfo("k.npy")
    big.compress_type, big.file_size = zipfile.ZIP_DEFLATED, 2**33
    with pytest.raises(ValueError, match="made to exhaust the memory"):
        check_member(big, 2**32)


@pytest.mark.parametrize("count", [9, 9999])  # read with the header, and after it
def test_an_entry_larger_than_its_directory_says_is_refused(tmp_path, count):
    path, true = tmp_path / "k.npz", 10**6
    data = npy(header((1, 1, count), "<f8")).ljust(true, b"\0")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("k.npy", data)
    data = bytearray(path.read_bytes())
    at = data.index(true.to_bytes(4, "little"), data.index(b"PK\x01\x02"))
    data[at : at + 4] = (128 + 8 * count).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged or cut short"):
        read_arrays(path, None).kernels[0].load()


def test_names_must_differ(tmp_path):
    with zipfile.ZipFile(tmp_path / "k.npz", "w") as archive:
        archive.writestr("k.npy", npy(header((1, 1, 1)), bytes(4)))
        archive.writestr("k", b"text")
    with pytest.raises(ValueError, match="must have different names"):
        contents_of(tmp_path / "k.npz")


def test_other_things_in_an_npz_are_kept(tmp_path):
    with zipfile.ZipFile(tmp_path / "k.npz", "w") as archive:
        archive.writestr("readme.txt", b"text")
        archive.writestr("k.npy", npy(header((1, 1, 1)), bytes(4)))
    found = contents_of(tmp_path / "k.npz").entries
    assert "something other than an array" in found[0].unsuitable
    read_arrays(tmp_path / "k.npz", None).write(
        tmp_path / "n.npz", {"k": np.ones((1, 1, 1), "float32")}
    )
    with zipfile.ZipFile(tmp_path / "n.npz") as archive:
        assert archive.read("readme.txt") == b"text"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("k.npz", r"must end in \.npy, got"),
        ("nowhere/k.npy", "in a folder that exists"),
        ("a-file/k.npy", "in a folder that exists"),
        ("folder.npy", "must be a file"),
    ],
)
def test_targets_are_checked_first(tmp_path, target, message):
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "a-file").touch()
    with pytest.raises(ValueError, match=message):
        check_target(tmp_path / target, ".npy", [])


def test_a_failing_write_leaves_nothing(tmp_path, arrays, monkeypatch):
    source, target = tmp_path / "k.npz", tmp_path / "new.npz"
    save_npz(source, arrays)
    target.write_bytes(b"precious")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match=r"new\.npz' must be writable: No space left"):
        read_arrays(source, None).write(target, {"single": arrays["single"]})
    assert target.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["k.npz", "new.npz"]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def write():
        with replacing(tmp_path / "k.npy") as partial:
            partial.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert not list(tmp_path.iterdir())


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real.npy").touch()
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    with replacing(tmp_path / "link.npy") as partial:
        partial.write_bytes(b"new")
    assert (tmp_path / "link.npy").is_symlink()
    assert (tmp_path / "real.npy").read_bytes() == b"new"


def test_missing_tools_say_how_to_get_them(tmp_path, monkeypatch, arrays):
    path = tmp_path / "k.safetensors"
    brain = arrays["single"].astype(ml_dtypes.bfloat16)
    safetensors.numpy.save_file({"brain": brain}, path)
    (kernel,) = read_arrays(path, None).kernels
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # as if not installed
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ModuleNotFoundError, match=r"install 'convspectra\[cli\]'"):
        kernel.load()
    with pytest.raises(ModuleNotFoundError, match="`safetensors` must be installed"):
        contents_of(path)


def test_a_tool_that_is_broken_inside_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "broken_tool.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        require("broken_tool", extra="cli")


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        ("float32", (3, 3, 1), ""),
        ("float32", (3, 3), "has fewer than 3 axes"),
        ("int8", (3, 3, 3), "holds int8, not floating point"),
        ("float128", (3, 3, 3), "holds float128, not floating point"),
    ],
)
def test_what_cannot_be_a_kernel(dtype, shape, reason):
    assert Entry("k", dtype, shape).unsuitable == reason


@pytest.mark.parametrize(
    ("error", "said"), [(EOFError(), "EOFError"), (KeyError("k"), "'k'")]
)
def test_damage_has_a_reason_also_where_the_parser_gives_none(error, said):
    message = rf"damaged or cut short \({said}\)"
    with pytest.raises(Refusal, match=message), parsing("file"):
        raise error


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("wrong", [".pth", ".bin", ".npz", ".txt", ""])
def test_the_content_tells_the_format_where_the_suffix_is_wrong(
    tmp_path, rng, suffix, wrong
):
    weight = rng.standard_normal((3, 2, 4))
    path = tmp_path / f"right{suffix}"
    if suffix == ".npy":
        np.save(path, weight)
    elif suffix == ".npz":
        np.savez(path, weight=weight)
    else:
        safetensors.numpy.save_file({"weight": weight}, path)
    path = path.rename(tmp_path / f"model{wrong}")
    (kernel,) = read_network(path).kernels
    np.testing.assert_array_equal(kernel.load(), weight)
