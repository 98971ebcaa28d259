"""Archives of torch.export: what torch itself says of the modules in them."""

import io
import json
import zipfile

import numpy as np
import pytest
from archives import changed
from optional import needed

import convspectra as cs
from convspectra._checkpoint import read_network
from convspectra._checkpoint.select import Options, select
from convspectra._checkpoint.stored import Refusal
from convspectra._checkpoint.torch_export import JSON_BYTES, read_export
from convspectra._cli.main import main

torch = needed("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")


class Images(nn.Module):
    """Two axes: strides, groups, all kinds of padding, a transposed layer, a matrix."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, (3, 2), stride=(2, 1), padding=(1, 0), bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.same = nn.Conv2d(8, 8, (3, 2), padding="same", dilation=(2, 1), groups=4)
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=(1, 0))
        self.around = nn.Conv2d(4, 4, 3, padding=(1, 2), padding_mode="circular")
        self.reflect = nn.ReflectionPad2d(1)  # a module of its own
        self.last = nn.Conv2d(4, 4, 3)
        self.line = nn.Linear(4, 5)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.a(x)))
        x = self.around(self.up(self.same(x)))
        return self.line(self.last(self.reflect(x)).mean((2, 3)))


class Axes(nn.Module):
    """One axis and three, a weight that serves twice, and one without a module."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(4, 4, 3, 2, 1, groups=2)
        self.up = nn.ConvTranspose1d(4, 6, 4, 2, groups=2, dilation=2)
        self.three = nn.Conv3d(2, 3, (1, 2, 3), stride=(1, 2, 1), padding="valid")
        self.own = nn.Parameter(torch.randn(3, 6, 2))

    def forward(self, x, y):
        x = self.up(self.one(self.one(x)))
        return nn.functional.conv1d(x, self.own, padding=1).sum() + self.three(y).sum()


class Other(nn.Module):
    """What has no stored kernel."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(1, 2, 3)
        self.computed = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 3))
        self.table = nn.Parameter(torch.ones(2, 3, 4))

    def forward(self, x):
        return self.computed(self.plain(x)) + self.table.sum()


EXAMPLES = {
    Images: (torch.zeros(2, 3, 12, 11),),
    Axes: (torch.zeros(1, 4, 18), torch.zeros(1, 2, 4, 5, 6)),
}


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda kind: kind.__name__)
def saved(request, tmp_path_factory):
    """A module, its example, and its archive."""
    torch.manual_seed(0)
    module, example = request.param().eval(), EXAMPLES[request.param]
    path = tmp_path_factory.mktemp("export") / "net.pt2"
    torch.export.save(torch.export.export(module, example), path)
    return module, example, path


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    """A module whose archive leaves the height open."""
    module = Images().eval()
    height = {2: 2 * torch.export.Dim("half", min=3, max=50)}
    example = EXAMPLES[Images]
    program = torch.export.export(module, example, dynamic_shapes=(height,))
    path = tmp_path_factory.mktemp("export") / "net.pt2"
    torch.export.save(program, path)
    return module, path


def as_in_the_module(found, wanted):
    """Compare layers of a file with those that torch itself has recorded."""
    wanted = [(x.name.partition("@")[0], x.geometry, x.weight) for x in wanted]
    assert len(found) == len(wanted)
    for layer, (name, geometry, weight) in zip(found, wanted):
        stored = layer.name.partition("@")[0]
        assert stored in (f"{name}.weight", name)
        assert layer.geometry == geometry
        assert not layer.unknown
        np.testing.assert_array_equal(layer.load().weight, weight.detach().numpy())


def test_layers_are_those_that_torch_records(saved):
    module, example, path = saved
    as_in_the_module(select(path, Options()).layers, cs.torch.layers(module, *example))


def test_a_wrong_suffix_does_not_matter(saved, tmp_path):
    (tmp_path / "net.bin").write_bytes(saved[2].read_bytes())
    assert len(read_network(tmp_path / "net.bin").kernels) > 3


def test_open_sizes_are_unknown_until_they_are_stated(dynamic):
    module, path = dynamic
    network = read_network(path)
    assert {k.name for k in network.kernels if "grid" in k.stated} == {"line.weight"}
    assert "--input 2x3x12x11" in network.advice[0]
    found = select(path, Options(sizes=(2, 3, 20, 11)))
    as_in_the_module(found.layers, cs.torch.layers(module, torch.zeros(2, 3, 20, 11)))
    for sizes in ((2, 3, 21, 11), (2, 3, 20, 12), (3, 20, 11)):
        with pytest.raises(ValueError, match="must be a shape that the program was"):
            read_network(path, sizes=sizes)


def test_a_batch_norm_is_folded(saved):
    module, example, path = saved
    if not isinstance(module, Images):
        pytest.skip("it has none")
    folded = select(path, Options(fold=True)).layers[0].load()
    (wanted, *_) = cs.torch.layers(module, *example, fold_batch_norm=True)
    np.testing.assert_allclose(folded.weight, wanted.weight.detach(), rtol=1e-6)


def test_decomposed_operators(tmp_path):
    module, example = Images().eval(), EXAMPLES[Images]
    program = torch.export.export(module, example).run_decompositions()
    torch.export.save(program, tmp_path / "net.pt2")
    found = select(tmp_path / "net.pt2", Options()).layers
    wanted = list(cs.torch.layers(module, *example))
    assert [x.name for x in found] == [f"{x.name}.weight" for x in wanted]
    for layer, other in zip(found, wanted):
        if other.name != "around":  # whose padding is now made of copies
            assert layer.geometry == other.geometry
        np.testing.assert_array_equal(layer.load().weight, other.weight.detach())
    assert found[0].kernel.factors is not None


def test_what_is_no_kernel_is_named(tmp_path):
    program = torch.export.export(Other().eval(), (torch.zeros(1, 1, 8, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    network = read_export(tmp_path / "net.pt2")
    assert [kernel.name for kernel in network.kernels] == ["plain.weight"]
    skipped = dict(network.skipped)
    assert skipped["conv2d_1"] == ("is conv2d: its weight is computed by the program")
    assert skipped["table"] == "is the weight of no layer that is read"


def test_layers_that_are_not_read_are_named(tmp_path):
    @torch.library.custom_op("mine::conv_fast", mutates_args=())
    def conv_fast(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, weight)

    conv_fast.register_fake(nn.functional.conv2d)

    class Unread(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = nn.Conv2d(1, 2, 3)
            self.fast = nn.Parameter(torch.ones(2, 2, 3, 3))
            self.matrix = nn.Parameter(torch.ones(2, 3))

        def forward(self, x):
            x = nn.functional.interpolate(self.plain(x), (9, 9), mode="bilinear")
            mixed = torch.einsum("nchw,cd->ndhw", x, self.matrix)
            return conv_fast(x, self.fast), mixed

    program = torch.export.export(Unread(), (torch.zeros(1, 1, 8, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    network = read_export(tmp_path / "net.pt2")
    assert [kernel.name for kernel in network.kernels] == ["plain.weight"]
    skipped = dict(network.skipped)
    assert skipped == {
        "conv_fast": "is mine.conv_fast: this operator is not read",
        "einsum": "is einsum: this operator is not read",
        "fast": "is the weight of no layer that is read",
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_and_memory_formats(tmp_path, dtype):
    module = nn.Conv2d(3, 4, 2, bias=False).to(getattr(torch, dtype))
    module = module.to(memory_format=torch.channels_last)
    example = torch.zeros(1, 3, 5, 5, dtype=getattr(torch, dtype))
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(module, (example,)), path)
    (kernel,) = read_export(path).kernels
    assert kernel.dtype == kernel.load().dtype.name == dtype
    np.testing.assert_array_equal(
        kernel.load().astype("f8"), module.weight.detach().double()
    )
    assert kernel.not_writable_because


def test_a_bounded_copy_is_loaded_by_torch(saved, tmp_path):
    module, _, path = saved
    network, target = read_network(path), tmp_path / "new.pt2"
    arrays = {k.name: 2 * k.load() for k in network.kernels if "@" not in k.name}
    network.write(target, arrays)
    new = torch.export.load(target).state_dict
    old = module.state_dict()
    for name in old:
        factor = 2 if name in arrays else 1
        assert torch.equal(new[name], factor * old[name])


def in_json(data, edit):
    found = json.loads(data)
    edit(found)
    return json.dumps(found).encode()


def config(**meta):
    """An edit of all that is listed of weights."""

    def edit(found):
        for stated in found["config"].values():
            stated["tensor_meta"] |= meta

    return {"weights_config.json": lambda data: in_json(data, edit)}


def paths(name):
    def edit(found):
        for stated in found["config"].values():
            stated["path_name"] = name

    return {"weights_config.json": lambda data: in_json(data, edit)}


def size(n):
    return {"as_int": n}


HOSTILE = {
    "huge": config(sizes=[size(2**40)] * 4, strides=[size(1)] * 4),
    "endless": config(sizes=[size(10**4000)], strides=[size(1)]),
    "negative": config(storage_offset=size(-5)),
    "many axes": config(sizes=[size(1)] * 1000, strides=[size(1)] * 1000),
    "no numbers": config(sizes=[size("3")], strides=[size(1)]),
    "no sizes": config(sizes=None),
    "elsewhere": paths("../../../../../etc/passwd"),
    "another": paths("/etc/passwd"),
    "deep": {"model.json": lambda data: b'{"a":' * 10**5},
    "deep lists": {"model.json": lambda data: b"[" * 10**6},
    "no json": {"model.json": lambda data: b"\xff\xfe"},
    "no graph": {"model.json": lambda data: b"{}"},
    "a list": {"weights_config.json": lambda data: b"[1, 2]"},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_refused(saved, tmp_path, capsys, case):
    path = changed(saved[2], tmp_path / "bad.pt2", HOSTILE[case])
    assert main(["report", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


def test_numbers_that_repeat_are_no_kernel(saved, tmp_path):
    change = config(sizes=[size(9)] * 4, strides=[size(0)] * 4)
    with pytest.raises(ValueError, match="repeats its numbers beyond the size"):
        select(changed(saved[2], tmp_path / "bad.pt2", change), Options())


def test_a_zip_bomb_is_not_unpacked(saved, tmp_path):
    with (
        zipfile.ZipFile(saved[2]) as old,
        zipfile.ZipFile(tmp_path / "bad.pt2", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            is_graph = info.filename.endswith("models/model.json")
            data = b" " * 2**25 if is_graph else old.read(info)
            new.writestr(info.filename, data)
    with pytest.raises(Refusal, match="must not be compressed"):
        read_export(tmp_path / "bad.pt2")


def test_a_graph_has_a_largest_size(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("convspectra._checkpoint.torch_export.JSON_BYTES", 1000)
    assert JSON_BYTES == 2**26
    with pytest.raises(Refusal, match="must unpack to at most 1000 bytes"):
        read_export(saved[2])


def test_another_archive_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    (tmp_path / "old.pt2").write_bytes(buffer.getvalue())
    with pytest.raises(Refusal, match="of an older PyTorch, or something else"):
        read_network(tmp_path / "old.pt2")
