"""Every BatchNorm that reads a layer is folded into it, and nothing else is."""

import copy
import warnings

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import matrix_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import convspectra as cs  # noqa: E402
from convspectra.torch import SpectralClip, layers  # noqa: E402
from convspectra.torch._record import Recorder  # noqa: E402

SHAPE = (2, 5, 6)


class Read(nn.Module):
    """A convolution, two norms with very different gains, and what reads them."""

    def __init__(self, forward, conv=nn.Conv2d):
        super().__init__()
        torch.manual_seed(0)
        self.c = conv(2, 2, 3, padding=1)
        self.a, self.b = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
        nn.init.constant_(self.a.weight, 10.0)
        nn.init.constant_(self.b.weight, 0.1)
        self.a.running_var[1] = 3.0
        self.own = nn.BatchNorm2d(2, track_running_stats=False)
        self.how = forward

    def forward(self, x):
        return self.how(self, x, self.c(x))


def names(model):
    found = layers(model, torch.ones(1, *SHAPE), fold_batch_norm=True)
    return [layer.name for layer in found]


def test_each_of_several_norms_is_folded():
    model = Read(lambda self, x, y: self.a(y) + self.b(y)).double().eval()
    x = torch.zeros(1, *SHAPE).double()
    found = layers(model, x, fold_batch_norm=True)
    assert [layer.name for layer in found] == ["c+a", "c+b"]
    for layer, norm in zip(found, (model.a, model.b)):
        want = matrix_of(nn.Sequential(model.c, norm), SHAPE)
        matrix = cs.dense_matrix(layer.weight, layer.geometry).numpy()
        np.testing.assert_allclose(matrix, want, atol=1e-12)


def set_afterwards(self, x, y):
    normed = self.b(y)
    y[:, 0] = 0
    return normed + y


OTHERS = {
    "sum": lambda self, x, y: self.b(y) + y,
    "first": lambda self, x, y: (y.relu(), self.b(y)),
    "returned": lambda self, x, y: {"features": [y], "out": self.b(y)},
    "convolved": lambda self, x, y: (self.b(y), F.conv2d(y, torch.ones(2, 2, 1, 1))),
    "stacked": lambda self, x, y: torch.stack([self.b(y), y]),
    "set": set_afterwards,
    "in-place": lambda self, x, y: self.b(y) + y.relu_(),
    "no statistics": lambda self, x, y: self.b(y) + self.own(y),
}


@pytest.mark.parametrize("how", OTHERS)
def test_what_else_reads_it_is_there_beside_the_norm(how):
    model = Read(OTHERS[how])
    found = layers(model, torch.zeros(1, *SHAPE), fold_batch_norm=True)
    weights = {layer.name: layer.weight for layer in found}
    assert set(weights) == {"c+b", "c"}
    assert torch.equal(weights["c"], model.c.weight)


SAME = {
    "shape": lambda self, x, y: self.b(y) * y.shape[-1] * y.dim(),
    "contiguous": lambda self, x, y: self.b(y.contiguous().float()),
    "dropout": lambda self, x, y: self.b(F.dropout(y, training=False)),
    "identity": lambda self, x, y: self.b(nn.Identity()(y)),
    "twice": lambda self, x, y: self.b(y) + self.b(y),
}


@pytest.mark.parametrize("how", SAME)
def test_what_makes_no_other_tensor_does_not_read(how):
    assert names(Read(SAME[how])) == ["c+b"]


def added(self, x, y):
    y += x
    return self.a(y)


def changed_by_a_view(self, x, y):
    y[:, :1].relu_()
    return self.a(y)


class Clamped(nn.Conv2d):
    """Changes what it has convolved, before it returns it."""

    def forward(self, x):
        return super().forward(x).clamp_(0, 1)


CHANGED = {
    "relu": (lambda self, x, y: self.a(F.relu(y, inplace=True)), nn.Conv2d),
    "module": (lambda self, x, y: self.a(nn.ReLU(inplace=True)(y)), nn.Conv2d),
    "added": (added, nn.Conv2d),
    "view": (changed_by_a_view, nn.Conv2d),
    "by itself": (lambda self, x, y: self.a(y), Clamped),
}


@pytest.mark.parametrize("how", CHANGED)
def test_no_norm_is_folded_through_a_change_in_place(how):
    assert names(Read(*CHANGED[how])) == ["c"]


@pytest.mark.parametrize("how", ["relu", "module", "added"])
def test_nor_in_inference_mode_where_tensors_have_no_versions(how):
    for forward, want in ((CHANGED[how][0], ["c"]), (SAME["shape"], ["c+b"])):
        model = Read(forward).eval()
        recorder = Recorder(model, batch_norms=True)
        with torch.inference_mode():
            model(torch.ones(1, *SHAPE))
        recorder.close()
        found = [
            use.name + ("+" + use.batch_norm[0] if use.batch_norm else "")
            for use in recorder.uses
        ]
        assert found == want


@pytest.mark.parametrize("method", ["scale", "project"])
def test_a_bound_holds_with_each_norm_and_without(method):
    model = Read(lambda self, x, y: self.a(y) + self.b(y) + y)
    x = torch.ones(1, *SHAPE)
    bound = SpectralClip(model, 0.2, method=method, example=x, fold_batch_norm=True)
    bound.apply()
    assert sorted(names(model)) == ["c", "c+a", "c+b"]
    double = copy.deepcopy(model).double().eval()
    parts = [
        double.c,
        nn.Sequential(double.c, double.a),
        nn.Sequential(double.c, double.b),
    ]
    norms = [np.linalg.norm(matrix_of(part, SHAPE), 2) for part in parts]
    assert 0.15 < max(norms) <= 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a training call shows nothing new
        model.train()(x)
        bound.apply()
    bound.detach()
