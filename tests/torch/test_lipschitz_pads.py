"""Convolutions and the pads before them, judged by the matrices of both together."""

import copy

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import matrix_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from convspectra.torch import lipschitz  # noqa: E402


def norm_of(model, shape):
    return np.linalg.norm(matrix_of(copy.deepcopy(model).double(), shape), 2)


class Pad(nn.Module):
    def __init__(self, *pads, mode):
        super().__init__()
        self.pads, self.mode = pads, mode

    def forward(self, x):
        return F.pad(x, self.pads, self.mode)


MODES = ("circular", "reflect", "replicate", "zeros")
# With the pad inside the layer, or as a step of its own; and the sizes of its input.
ONE_LAYER = {
    **{
        mode: (nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode=mode), (2, 5, 4))
        for mode in MODES
    },
    "one axis": (nn.Conv1d(2, 2, 4, 2, 2, padding_mode="circular"), (2, 6)),
    "three axes": (
        nn.Conv3d(1, 2, 2, padding=1, padding_mode="replicate"),
        (1, 2, 3, 2),
    ),
    "grouped": (
        nn.Conv2d(4, 4, 3, 1, 2, 2, groups=2, padding_mode="reflect"),
        (4, 4, 5),
    ),
    "same": (nn.Conv2d(2, 2, 4, padding="same", padding_mode="circular"), (2, 5, 5)),
    "by a step": (
        nn.Sequential(Pad(0, 2, 1, 3, mode="reflect"), nn.Conv2d(2, 2, 3, (2, 1))),
        (2, 4, 5),
    ),
    "by constants": (
        nn.Sequential(Pad(0, 2, 1, 3, mode="constant"), nn.Conv2d(2, 2, 3)),
        (2, 3, 4),
    ),
}


@pytest.mark.parametrize("name", ONE_LAYER)
def test_a_pad_belongs_to_the_convolution_that_reads_it(name):
    model, shape = ONE_LAYER[name]
    bounds = lipschitz(model, torch.randn(1, *shape))
    norm = norm_of(model, shape)
    assert norm <= bounds.upper <= norm * 1.002
    assert [part.operator for part in bounds.parts] == [f"conv{len(shape) - 1}d"]


# Two steps whose product of norms is still their bound.
TWO_STEPS = {
    "a layer that pads, too": (
        nn.Sequential(Pad(1, 1, 1, 1, mode="reflect"), nn.Conv2d(2, 2, 3, padding=1)),
        (2, 4, 4),
    ),
    "a pad that leaves out": (
        nn.Sequential(Pad(1, -1, 2, 0, mode="replicate"), nn.Conv2d(2, 2, 3)),
        (2, 5, 5),
    ),
    "more axes than the layer has": (
        nn.Sequential(Pad(1, 1, 0, 1, mode="reflect"), nn.Conv1d(3, 2, 3)),
        (2, 5),
    ),
    "transposed": (
        nn.Sequential(Pad(1, 1, mode="circular"), nn.ConvTranspose1d(2, 2, 3)),
        (2, 5),
    ),
}


@pytest.mark.parametrize("name", TWO_STEPS)
def test_other_pads_count_apart(name):
    model, shape = TWO_STEPS[name]
    bounds = lipschitz(model, torch.randn(1, *shape))
    assert norm_of(model, shape) <= bounds.upper
    assert len(bounds.parts) == 2
    assert not bounds.unknown


def test_a_pad_that_others_read_counts_for_them():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(2, 2, 3, bias=False)

        def forward(self, x):
            padded = F.pad(x, (1, 1), "circular")
            return self.conv(padded), padded

    torch.manual_seed(0)
    model, shape = Both(), (2, 5)
    bounds = lipschitz(model, torch.randn(1, *shape), rtol=1e-6)
    model.double()
    both = [matrix_of(lambda x, i=i: model(x)[i], shape) for i in (0, 1)]
    norms = [np.linalg.norm(matrix, 2) for matrix in both]
    assert bounds.upper == pytest.approx(np.hypot(*norms), rel=1e-5)


def test_a_layer_has_its_name_and_its_batch_norm():
    layer = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(layer, nn.BatchNorm2d(2), nn.ReflectionPad2d(1))
    bounds = lipschitz(model, torch.randn(1, 2, 6, 6))
    assert [part.name for part in bounds.parts] == ["0+1", "2"]
