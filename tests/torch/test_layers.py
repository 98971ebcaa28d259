"""The layers of a model, judged by what the modules themselves do to a basis."""

import copy
import dataclasses

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import EXAMPLE, Residual, matrix_of, small  # noqa: E402
from torch import nn  # noqa: E402

import convspectra as cs  # noqa: E402
from convspectra.torch import Layers, bounded, layers  # noqa: E402

MODULES = {
    "1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 7)),
    "2d": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 5, 6)),
    "3d": (lambda: nn.Conv3d(1, 2, 2, stride=(1, 2, 1)), (1, 3, 4, 3)),
    "same": (lambda: nn.Conv2d(2, 2, (2, 4), padding="same", dilation=2), (2, 5, 6)),
    "valid": (lambda: nn.Conv2d(2, 2, 3, padding="valid"), (2, 5, 6)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=2), (4, 4, 4)),
    "circular": (lambda: nn.Conv2d(2, 2, 3, 1, 1, padding_mode="circular"), (2, 4, 5)),
    "circular-same": (
        lambda: nn.Conv2d(2, 2, 4, padding="same", padding_mode="circular"),
        (2, 6, 5),
    ),
    "circular-uneven": (
        lambda: nn.Conv2d(2, 2, 3, 2, 2, padding_mode="circular"),
        (2, 5, 5),
    ),
    "reflect": (lambda: nn.Conv2d(2, 2, 3, 1, 1, padding_mode="reflect"), (2, 4, 5)),
    "replicate": (
        lambda: nn.Conv1d(2, 2, 5, 2, 3, padding_mode="replicate"),
        (2, 8),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 4, 2, 1), (2, 3, 4)),
    "transposed-grouped": (
        lambda: nn.ConvTranspose1d(4, 6, 3, 3, 1, output_padding=2, groups=2),
        (4, 5),
    ),
    "transposed-dilated": (
        lambda: nn.ConvTranspose2d(2, 2, 3, 2, 2, dilation=2, output_padding=1),
        (2, 4, 4),
    ),
    "linear": (lambda: nn.Linear(5, 3), (5,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_layer_is_the_matrix_of_its_module(name):
    make, shape = MODULES[name]
    module = make().double()
    (layer,) = layers(module, torch.zeros(1, *shape).double())
    found = cs.dense_matrix(layer.weight, layer.geometry).numpy()
    np.testing.assert_allclose(found, matrix_of(module, shape), atol=1e-12)


def test_a_transposed_layer_can_be_told_its_size_in_the_call():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose1d(1, 1, 3, stride=2, padding=1)

        def forward(self, x):
            return self.up(x, output_size=[8]).sum() + self.up(x).sum()

    found = layers(Twice(), torch.zeros(1, 1, 4))
    assert [layer.geometry.out_grid(3) for layer in found] == [(8,), (7,)]


def test_layers_come_in_the_order_of_the_pass_with_their_names_and_sizes():
    found = layers(small(), torch.zeros(EXAMPLE))
    assert isinstance(found, Layers)
    assert [layer.name for layer in found] == [
        *("0", "1.inner@8x8", "1.shortcut", "1.inner@4x4", "2", "4"),
    ]
    assert [layer.geometry.grid for layer in found[:3]] == [(8, 8)] * 3
    assert found.skipped == {}
    assert [row["name"] for row in cs.spectra(found).rows()][-1] == "4"


def test_weights_share_memory_with_the_model():
    model = small()
    found = layers(model, torch.zeros(EXAMPLE))
    assert found[0].weight.data_ptr() == model[0].weight.data_ptr()
    assert not found[0].weight.requires_grad


def test_a_model_is_as_it_was_before():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x + torch.rand(1)

    model = nn.Sequential(small(), Counting()).train()
    model[0][1].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    layers(model, torch.randn(EXAMPLE, generator=torch.Generator()))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
    assert not any(any(each) for each in hooks)


def test_a_failing_pass_leaves_no_hooks():
    model = small()
    with pytest.raises(RuntimeError):
        layers(model, torch.zeros(1, 3, 8, 8))
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training


def test_lazy_and_parametrized_modules():
    lazy = nn.Sequential(nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d())
    (layer,) = layers(lazy, torch.zeros(1, 2, 5, 5))
    assert layer.weight.shape == (3, 2, 3, 3)
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 3))
    with torch.no_grad():
        normed.parametrizations.weight.original0 *= 3
    (layer,) = layers(normed, torch.zeros(1, 2, 5, 5))
    assert torch.equal(layer.weight, normed.weight)


def test_what_is_not_among_the_layers_is_named_with_a_reason():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.ones(2, 2, 3, 3))
            self.unused = nn.Conv2d(2, 2, 3)
            self.used = nn.Conv2d(2, 2, 3)

        def forward(self, x):
            return nn.functional.conv2d(self.used(x), self.kernel)

    found = layers(nn.Sequential(Odd()), torch.zeros(1, 2, 8, 8))
    assert [layer.name for layer in found] == ["0.used", "0.kernel"]
    assert set(found.skipped) == {"0.unused"}
    assert "did not run" in found.skipped["0.unused"]
    without = layers(nn.Sequential(Odd()))
    assert [layer.name for layer in without] == ["0.unused", "0.used"]
    assert "give an example" in without.skipped["0"]


def test_without_an_example_layers_are_of_every_size():
    found = layers(small())
    assert [layer.geometry.grid for layer in found] == [None] * 4 + [(1,)]
    assert cs.operator_norm(found[0].weight, found[0].geometry).method == "supremum"


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 2, 8, 8)])
def test_inputs_with_and_without_a_batch(shape):
    model = nn.Conv2d(2, 3, 3)
    assert layers(model, torch.zeros(shape))[0].geometry.grid == (8, 8)
    assert layers(model, input=torch.zeros(shape))[0].geometry.grid == (8, 8)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_batch_norm_is_folded_as_it_is_deployed(transposed):
    torch.manual_seed(0)
    conv = (
        nn.ConvTranspose2d(4, 6, 3, 2, groups=2)
        if transposed
        else nn.Conv2d(4, 6, 3, groups=2, padding=1)
    )
    model = nn.Sequential(conv, nn.BatchNorm2d(6)).double()
    for _ in range(3):
        model(3 * torch.randn(5, 4, 4, 4).double())
    nn.init.normal_(model[1].weight)
    (layer,) = layers(model, torch.zeros(1, 4, 4, 4).double(), fold_batch_norm=True)
    assert layer.name == "0+1"
    found = cs.dense_matrix(layer.weight, layer.geometry).numpy()
    want = matrix_of(copy.deepcopy(model).eval(), (4, 4, 4))
    np.testing.assert_allclose(found, want, atol=1e-12)


def test_only_the_norm_right_after_a_layer_is_folded():
    names = [
        x.name for x in layers(small(), torch.zeros(EXAMPLE), fold_batch_norm=True)
    ]
    assert names == [
        *("0", "1.inner+1.norm@8x8", "1.shortcut", "1.inner@4x4", "2", "4"),
    ]


def test_a_norm_may_be_given_its_input_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

        def forward(self, x):
            return self.norm(input=self.conv(input=x))

    (layer,) = layers(Named(), torch.zeros(1, 2, 5, 5), fold_batch_norm=True)
    assert layer.name == "conv+norm"


def test_a_norm_without_running_statistics_is_not_folded():
    model = nn.Sequential(
        nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2, track_running_stats=False)
    )
    (layer,) = layers(model, torch.randn(1, 2, 5, 5), fold_batch_norm=True)
    assert layer.name == "0"


def test_a_use_without_the_norm_is_there_beside_the_one_with_it():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

        def forward(self, x):
            return self.conv(x) + self.norm(self.conv(x))

    found = layers(Both(), torch.zeros(1, 2, 5, 5), fold_batch_norm=True)
    assert [layer.name for layer in found] == ["conv", "conv+norm"]


def test_a_norm_over_another_axis_than_the_channels_is_not_folded():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    found = layers(model, torch.zeros(2, 4, 4), fold_batch_norm=True)
    assert [layer.name for layer in found] == ["0"]
    found = layers(model, torch.zeros(2, 4), fold_batch_norm=True)
    assert [layer.name for layer in found] == ["0+1"]


def test_arguments_and_keywords_go_to_the_model_together():
    class Scaled(nn.Conv2d):
        def forward(self, x, *, scale):
            return scale * super().forward(x)

    found = layers(Scaled(2, 2, 3), torch.zeros(1, 2, 5, 5), scale=2.0)
    assert found[0].geometry.grid == (5, 5)


def test_a_call_counts_whatever_the_module_returns():
    class Pair(nn.Linear):
        def forward(self, input):
            return super().forward(input), None

    (layer,) = layers(nn.Sequential(Pair(2, 2)), torch.zeros(1, 2))
    assert (layer.name, layer.weight.shape) == ("0", (2, 2, 1))


def test_lazy_layers_without_an_example_are_named():
    found = layers(nn.Sequential(nn.LazyConv2d(2, 3), nn.Linear(2, 2)))
    assert [layer.name for layer in found] == ["1"]
    assert "lazy" in found.skipped["0"]


def test_a_compiled_model_has_the_names_of_the_plain_one():
    model = Residual()
    names = [x.name for x in layers(model, torch.zeros(1, 4, 4, 4))]
    for compiled in (torch.compile(model, backend="eager"), model):
        model.compile(backend="eager")
        found = layers(compiled, torch.zeros(1, 4, 4, 4))
        assert [x.name for x in found] == names


def test_half_precision_and_channels_last():
    model = small().to(torch.bfloat16).to(memory_format=torch.channels_last)
    found = layers(model, torch.zeros(EXAMPLE, dtype=torch.bfloat16))
    want = layers(small(), torch.zeros(EXAMPLE))
    for a, b in zip(found, want):
        ends = [float(cs.operator_norm(x.weight, x.geometry).upper) for x in (a, b)]
        assert ends[0] == pytest.approx(ends[1], rel=0.02)


def test_a_model_without_numbers_is_refused():
    with torch.device("meta"):
        model = small()
    with pytest.raises(ValueError, match="meta device"):
        layers(model, torch.zeros(EXAMPLE, device="meta"))


PARAMETRIZED = {
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "bounded": lambda module: bounded(module, 0.3),
}


@pytest.mark.parametrize("how", PARAMETRIZED)
@pytest.mark.parametrize("given", [True, False])
def test_a_parametrized_weight_is_that_of_evaluation_mode(how, given):
    torch.manual_seed(0)
    model = PARAMETRIZED[how](nn.Conv2d(2, 3, 3, padding=1)).train()
    with torch.no_grad():  # as a step does, which buffers in training mode follow
        model.parametrizations.weight.original *= 1 + torch.rand(3, 1, 1, 1)
    before = copy.deepcopy(model.state_dict())
    example = (torch.zeros(1, 2, 4, 5),) if given else ()
    found = [layers(model, *example)[0] for _ in range(2)]
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    want = matrix_of(copy.deepcopy(model).double().eval(), (2, 4, 5))
    for layer in found:
        geometry = dataclasses.replace(layer.geometry, grid=(4, 5))
        matrix = cs.dense_matrix(layer.weight, geometry).numpy()
        np.testing.assert_allclose(matrix, want, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # scripts are deprecated
def test_a_frozen_script_has_no_mode_and_passes_by():
    script = torch.jit.freeze(torch.jit.script(nn.Conv2d(2, 2, 3).eval()))
    model = nn.Sequential(nn.Conv2d(2, 2, 3), script)
    for example in ((), (torch.zeros(1, 2, 7, 7),)):
        assert [layer.name for layer in layers(model, *example)] == ["0"]


def test_a_norm_is_folded_only_if_an_example_shows_what_it_follows():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(ValueError, match="`fold_batch_norm` needs an example"):
        layers(model, fold_batch_norm=True)


class Borrowing(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.linear(x, self.linear.weight)


def test_a_layer_whose_weight_another_module_uses_is_not_said_to_be_idle():
    attention = nn.MultiheadAttention(4, 2)
    model = nn.Sequential(Borrowing(), nn.TransformerEncoderLayer(4, 2, 8))
    for module, args, name in (
        (attention, [torch.zeros(3, 4)] * 3, "out_proj"),
        (model, [torch.zeros(3, 4)], "0.linear"),
        (model, [torch.zeros(3, 4)], "1.self_attn.out_proj"),
    ):
        why = layers(module, *args).skipped[name]
        assert "another module may have used its weight" in why


class Block(nn.Module):
    """Has a kernel, and maybe a part that is named like its class."""

    def __init__(self, *parts):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 2, 3, 3))
        for part in parts:
            self.Block = part

    def forward(self, x):
        for part in self.children():
            x = part(x)
        return nn.functional.conv2d(x, self.w, padding=1)


def test_a_part_may_be_named_like_the_class_of_the_model():
    model = Block(Block())
    found = layers(model, torch.zeros(1, 2, 5, 5))
    assert [layer.name for layer in found] == ["Block.w", "w"]
    for layer, module in zip(found, (model.Block, model)):
        assert torch.equal(layer.weight, module.w)


class Idle(Block):
    """Has a layer, named like its class, that it does not call."""

    def __init__(self):
        super().__init__()
        self.Idle = nn.Conv2d(2, 2, 3)

    def forward(self, x):
        return nn.functional.conv2d(x, self.w)


def test_an_idle_part_of_that_name_is_skipped_with_a_reason():
    found = layers(Idle(), torch.zeros(1, 2, 5, 5))
    assert [layer.name for layer in found] == ["w"]
    assert "did not run" in found.skipped["Idle"]
