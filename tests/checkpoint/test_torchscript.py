"""TorchScript files: what torch itself says of the modules, and what is refused."""

import json
import pickle
import zipfile

import numpy as np
import pytest
from archives import changed
from optional import needed

import convspectra as cs
from convspectra._checkpoint import read_network, torchscript_file
from convspectra._checkpoint.select import Options, select
from convspectra._checkpoint.stored import Refusal
from convspectra._checkpoint.torchscript_file import NO_CODE, read_script
from convspectra._cli.main import main

torch = needed("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLE = torch.zeros(2, 3, 12, 11)
AROUND = "around"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, (3, 2), stride=(2, 1), padding=(1, 0), bias=False)
        self.same = nn.Conv2d(8, 8, (3, 2), padding="same", dilation=(2, 1), groups=4)
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=(1, 0))
        self.around = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.several = nn.ModuleList(
            [nn.Conv2d(4, 4, 3, padding=i, groups=4) for i in (0, 1)]
        )
        self.own = nn.Parameter(torch.randn(6, 4, 2, 2))
        self.line = nn.Linear(6, 5)

    def forward(self, x):
        x = self.around(self.up(self.same(self.a(x))))
        for layer in self.several:
            x = layer(x)
        x = nn.functional.conv2d(x, self.own, stride=(1, 2))
        return self.line(x.mean((2, 3)))


def compiled(way, module):
    if way.endswith("script"):
        module = torch.jit.script(module)
    else:
        module = torch.jit.trace(module, EXAMPLE)
    return torch.jit.freeze(module) if way.startswith("frozen") else module


@pytest.fixture(scope="module", params=["script", "trace", "frozen script"])
def saved(request, tmp_path_factory):
    """How a module is compiled, the module, and its file."""
    torch.manual_seed(0)
    module = Net().eval()
    path = tmp_path_factory.mktemp("script") / "net.pt"
    compiled(request.param, module).save(path)
    return request.param, module, path


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The file of one module that is not frozen, for all that is done to files."""
    path = tmp_path_factory.mktemp("script") / "net.pt"
    torch.jit.script(Net().eval()).save(path)
    return path


def test_layers_are_those_that_torch_records(saved):
    way, module, path = saved
    found = select(path, Options()).layers
    wanted = {x.name: x for x in cs.torch.layers(module, EXAMPLE)}
    assert len(found) == len(wanted)
    if way.startswith("frozen"):  # there are no names, but the order of the code
        names = dict(zip([layer.name for layer in found], wanted))
        del names[found[list(wanted).index(AROUND)].name]  # and no module that pads
    else:
        names = {x.name: x.name.removesuffix(".weight") for x in found}
        assert set(names.values()) == set(wanted)
    for layer in found:
        if layer.name not in names:
            continue
        other = wanted[names[layer.name]]
        assert layer.unknown == (() if layer.kernel.linear else ("grid",))
        assert layer.geometry == (
            other.geometry
            if layer.kernel.linear
            else cs.Geometry(None, **fields(other.geometry))
        )
        np.testing.assert_array_equal(layer.load().weight, other.weight.detach())


def fields(geometry):
    names = ("stride", "dilation", "groups", "padding", "boundary", "transposed")
    found = {name: getattr(geometry, name) for name in names}
    if geometry.transposed:
        found["output_padding"] = geometry.output_padding
    return found


def test_a_report_on_such_a_file(saved, capsys):
    assert main(["report", str(saved[2]), "--quick", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    assert [2, 1] in [row["stride"] for row in rows]


def test_nothing_is_written(saved, tmp_path):
    network = read_network(saved[2])
    kernel = network.kernels[0]
    with pytest.raises(ValueError, match="is in a compiled model"):
        network.write(tmp_path / "new.pt", {kernel.name: kernel.load()})
    with pytest.raises(ValueError, match="no copy is made of a compiled model"):
        network.write(tmp_path / "new.pt", {})


CODES = {
    "no code": b"nonsense (",
    "nested": b"x = " + b"(" * 10**5,
    "a long sum": b"x = " + b"1+" * 10**5 + b"1",
    "not text": b"\0",
}


@pytest.mark.parametrize("case", CODES)
def test_without_its_code_a_file_has_weights_alone(script, tmp_path, case):
    path = changed(script, tmp_path / "bad.pt", {".py": lambda _: CODES[case]})
    network = read_script(path)
    assert len(network.kernels) == 7
    assert not any(kernel.stated for kernel in network.kernels)
    assert network.advice == (NO_CODE,)


def test_what_the_code_computes_is_unknown(script, tmp_path):
    edit = {".py": lambda data: data.replace(b"[2, 1]", b"f()")}
    network = read_script(changed(script, tmp_path / "bad.pt", edit))
    assert [bool(kernel.stated) for kernel in network.kernels].count(False) == 2
    reasons = {why for name, why in network.skipped if "conv" in name}
    assert reasons == {"its stride is computed", "its dilation is computed"}


def test_long_code_is_not_parsed(script, tmp_path, monkeypatch):
    monkeypatch.setattr(torchscript_file, "CODE_BYTES", 10)
    assert read_script(script).advice == (NO_CODE,)


def test_many_calls_in_many_modules_are_refused(script, monkeypatch):
    monkeypatch.setattr(torchscript_file, "MOST_CALLS", 3)
    with pytest.raises(Refusal, match="at most 3 convolutions"):
        read_script(script)


def pickled(*opcodes):
    return b"\x80\x02" + b"".join(opcodes) + b"."


MODULE = b"c__torch__\nNet\n)\x81"
# A dict of a hundred items, kept, and the state of ten thousand modules.
ITEMS = b"}(" + b"".join(b"X\x02\0\0\0%02dN" % i for i in range(100)) + b"uq\x01"
COPIES = b"".join(MODULE + b"h\x01b0" for _ in range(10**4))
HOSTILE = {
    "calls": pickled(b"cos\nsystem\n(X\x02\0\0\0lstR"),
    "another class": pickled(b"cos\nsystem\n)\x81"),
    "arguments": pickled(b"c__torch__\nNet\n(X\x02\0\0\0lst\x81"),
    "copies": pickled(ITEMS, COPIES),
    "itself": pickled(MODULE, b"q\x01}(X\x01\0\0\0ah\x01X\x01\0\0\0bK\x05ub"),
    "no module": pickled(b"K\x05"),
    "empty": b"",
    "no pickle": b"\xff" * 100,
    "protocol 4": pickle.dumps({"a": {"b": [1] * 50}}, protocol=4),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles_are_refused(script, tmp_path, capsys, case):
    path = changed(script, tmp_path / "bad.pt", {"/data.pkl": lambda _: HOSTILE[case]})
    assert main(["report", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


def test_a_compressed_storage_is_refused(script, tmp_path):
    path = changed(script, tmp_path / "bad.pt", {}, zipfile.ZIP_DEFLATED)
    with pytest.raises(Refusal, match="must not be compressed"):
        read_script(path)


def test_storages_must_be_there_and_whole(script, tmp_path):
    path = changed(script, tmp_path / "bad.pt", {"/0": lambda data: data[:-4]})
    with pytest.raises(Refusal, match="another size of storage '0'"):
        read_script(path)
