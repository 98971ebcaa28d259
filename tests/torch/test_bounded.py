"""A layer that is bounded by how its weight is made."""

import copy

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import EXAMPLE, matrix_of, small  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

import convspectra as cs  # noqa: E402
from convspectra.torch import bounded, layers  # noqa: E402

MODULES = {
    "zeros": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 5, 6)),
    "strided": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 6, 6)),
    "circular": (
        lambda: nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"),
        (2, 7),
    ),
    "reflect": (lambda: nn.Conv1d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 7)),
    "transposed": (lambda: nn.ConvTranspose1d(2, 3, 4, 2, 1), (2, 6)),
    "linear": (lambda: nn.Linear(4, 3), (4,)),
}


@pytest.mark.parametrize("certify", ["eval", "always"])
@pytest.mark.parametrize("with_grid", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_the_module_itself_stretches_no_more(name, with_grid, certify):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module = make().double()
    with torch.no_grad():
        module.weight *= 10
    grid = shape[1:] if with_grid and name != "linear" else None
    assert bounded(module, 0.5, grid=grid, certify=certify) is module
    for mode in (True, False, True):  # right in the first call in evaluation mode
        norm = np.linalg.norm(matrix_of(module.train(mode), shape), 2)
        estimated = mode and certify == "eval"
        assert norm <= (0.51 if estimated else 0.5)
        if with_grid and name != "reflect":
            assert norm > (0.49 if estimated else 0.4999)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_weight_that_is_inside_stays_as_it_is(dtype):
    module = nn.Conv2d(16, 16, 3).to(dtype)
    plain = module.weight.detach().clone()
    norm = float(cs.operator_norm(plain, cs.Geometry(None)).upper)
    assert torch.equal(bounded(module, norm * 1.01).eval().weight, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_in_low_precision_too(dtype):
    module = bounded(nn.Conv2d(3, 4, 3).to(dtype), 0.25).eval()
    assert module.weight.dtype == dtype
    end = cs.operator_norm(module.weight.detach().double(), cs.Geometry(None)).lower
    assert end <= 0.25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_bounded_model_may_be_cast(dtype):
    torch.manual_seed(0)
    module = bounded(nn.Conv2d(3, 4, 3, padding=1, bias=False), 0.25, grid=(5, 5))
    module.to(dtype)
    for _ in range(3):
        module(torch.zeros(1, 3, 5, 5, dtype=dtype)).sum().backward()
    for mode, most in ((True, 0.26), (False, 0.25)):
        weight = module.train(mode).weight.detach()
        assert weight.dtype == dtype
        matrix = cs.dense_matrix(weight.double(), cs.Geometry((5, 5), boundary="zeros"))
        assert 0.24 < np.linalg.norm(matrix.numpy(), 2) <= most


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scaled_down_by_little_more_than_asked_for(dtype):
    torch.manual_seed(0)
    module = nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular", bias=False)
    module = bounded(module.to(dtype), 0.5, grid=(4, 4)).eval()
    geometry = cs.Geometry((4, 4), padding=1)
    end = cs.operator_norm(module.weight.detach().double(), geometry, 1e-6)
    assert 0.5 * (1 - 1.5 * torch.finfo(dtype).eps) <= end.lower <= end.upper <= 0.5


@pytest.mark.parametrize(("margin", "power"), [(1 / 128, 4), (8 / 120, 5)])
def test_the_bound_holds_where_all_rounding_adds_up(margin, power):
    """Positive numbers are rounded up by this scale, and negative ones, too.

    The rows of signs add up to the root of their number. So the constant vector is a
    top one, as for what rounding adds: up to 8 % of the norm.
    """
    torch.manual_seed(0)
    signs, scale = torch.ones(1, 1), 0.5403
    for _ in range(power):
        signs = torch.kron(signs, 1 - 2 * torch.eye(4))
    values = torch.arange(1.75, 2, 1 / 128)
    off = (values * scale).bfloat16() - values * scale
    up, down = values[off > 0.35 / 128], values[off < -0.35 / 128]
    drawn = [x[torch.randint(len(x), signs.shape)] for x in (up, down)]
    weight = torch.where(signs > 0, drawn[0], -drawn[1])
    bound = scale * float(torch.linalg.matrix_norm(weight, 2)) * (1 + margin)
    module = nn.Linear(*weight.shape, bias=False, dtype=torch.bfloat16)
    module.weight.data = weight.bfloat16()
    found = bounded(module, bound).eval().weight.detach().float()
    assert 0.9 * bound < torch.linalg.matrix_norm(found, 2) <= bound


@pytest.mark.parametrize("certify", ["eval", "always"])
def test_gradients_go_through_the_norm(certify):
    torch.manual_seed(0)
    module = nn.Conv2d(2, 2, 3, padding=1).double()
    bounded(module, 0.1, grid=(5, 5), certify=certify)
    for _ in range(300 if certify == "eval" else 0):
        module.weight  # noqa: B018 (a step of power iteration)
    x = torch.randn(1, 2, 5, 5).double()
    parameter = module.parametrizations.weight.original

    def output(weight):
        scaled = module.parametrizations.weight[0](weight)
        return nn.functional.conv2d(x, scaled, padding=1)

    assert torch.autograd.gradcheck(output, parameter, rtol=1e-3)


def test_a_tiny_scale_in_half_precision():
    torch.manual_seed(0)
    module = nn.Linear(64, 64).half()
    with torch.no_grad():
        module.weight.normal_(0, 100)
    bounded(module, 1e-1)
    norm = torch.linalg.matrix_norm(module.weight.detach().double(), 2)
    assert norm == pytest.approx(0.1, rel=0.02)
    assert norm <= 0.1


def test_a_lazy_layer_is_refused():
    with pytest.raises(ValueError, match="lazy"):
        bounded(nn.LazyConv2d(2, 3))


def test_the_zero_weight_stays_zero():
    module = nn.Conv2d(2, 2, 3)
    nn.init.zeros_(module.weight)
    bounded(module, 1.0)
    module(torch.ones(1, 2, 4, 4)).sum().backward()
    assert not module.weight.any()
    assert torch.isfinite(module.parametrizations.weight.original.grad).all()


def test_a_copy_is_bounded_and_states_load(tmp_path):
    module = bounded(nn.Conv2d(2, 2, 3), 0.3)
    twin = copy.deepcopy(module)
    assert torch.equal(twin.weight, module.weight)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other = bounded(nn.Conv2d(2, 2, 3), 0.3)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other.weight, module.weight)
    assert [key for key in module.state_dict() if "0." not in key] == [
        *("bias", "parametrizations.weight.original"),
    ]


def test_removal_leaves_the_plain_weight_that_was_in_effect():
    module = bounded(nn.Conv2d(2, 2, 3), 0.3).eval()
    effective = module.weight.detach().clone()
    parametrize.remove_parametrizations(module, "weight")
    assert type(module) is nn.Conv2d
    assert torch.equal(module.weight, effective)
    assert set(module.state_dict()) == {"weight", "bias"}


@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
@pytest.mark.parametrize("certify", ["eval", "always"])
def test_it_compiles_into_one_graph(certify):
    module = bounded(nn.Conv2d(2, 2, 3), 0.3, certify=certify)
    for _ in range(300 if certify == "eval" else 0):
        module.weight  # noqa: B018 (a step of power iteration)
    x = torch.randn(1, 2, 5, 5)
    plain = module(x)
    plain.sum().backward()
    original = module.parametrizations.weight.original
    want, original.grad = original.grad, None
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    found = compiled(x)
    found.sum().backward()
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(original.grad, want)


def test_the_operation_is_one_that_pytorch_accepts():
    from convspectra.torch._norm_op import _norm, text_of

    for layout in (torch.contiguous_format, torch.channels_last):
        weight = torch.randn(2, 2, 3, 3).to(memory_format=layout).requires_grad_()
        torch.library.opcheck(_norm, (weight, text_of(cs.Geometry((4, 4)))))


def test_a_network_s_convolutions_and_no_others():
    model = bounded(small(), 0.5).eval()
    norms = [
        float(cs.operator_norm(x.weight, x.geometry).upper)
        for x in layers(model, torch.zeros(EXAMPLE))
    ]
    assert max(norms[:-1]) <= 0.5
    assert not parametrize.is_parametrized(model[4])
    assert "max_norm=0.5, grid=None, certify='eval'" in repr(model[0])


def test_it_trains():
    torch.manual_seed(0)
    module = bounded(nn.Conv2d(1, 1, 3, padding=1), 1.0, grid=(8, 8))
    x = torch.randn(16, 1, 8, 8)
    optimizer = torch.optim.Adam(module.parameters(), 0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (module(x) - x).square().mean()  # the identity, which has norm 1
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_what_has_no_convolution_is_refused():
    with pytest.raises(ValueError, match="must be a convolution, a Linear, or hold"):
        bounded(nn.ReLU())
    with pytest.raises(ValueError, match="`max_norm` must be"):
        bounded(nn.Conv2d(1, 1, 3), 0.0)


def certified(module, *shape):
    return np.linalg.norm(matrix_of(copy.deepcopy(module).double(), shape), 2)


def test_a_model_by_an_example_with_bounds_by_name():
    model = small()
    bounds = {"1.short*": None, "1.*": 0.3, "[02]": 0.5}
    assert bounded(model, bounds, example=torch.zeros(EXAMPLE)) is model
    model.eval()
    assert certified(model[0], 2, 8, 8) == pytest.approx(0.5, rel=1e-3)
    for side in (4, 8):  # the sizes that this layer sees
        assert certified(model[1].inner, 4, side, side) <= 0.3
    assert not parametrize.is_parametrized(model[1].shortcut)
    assert "grid=[(8, 8), (4, 4)]" in repr(model[1].inner)
    with pytest.raises(ValueError, match="'9' matches none of"):
        bounded(small(), {"9": 1.0}, example=torch.zeros(EXAMPLE))
    with pytest.raises(ValueError, match="Only one of `grid` and `example`"):
        bounded(small(), 1.0, grid=(8, 8), example=torch.zeros(EXAMPLE))


def test_all_layers_or_none():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    with torch.no_grad():
        model[1].weight[0] = torch.inf
    with pytest.raises(ValueError, match="Layer '1': `weight` must be finite"):
        bounded(model, 0.5)
    assert not any(parametrize.is_parametrized(module) for module in model)


def test_a_weight_that_a_hook_sets_is_refused_before_any_is_bounded():
    hooked = nn.Conv2d(2, 2, 3)
    with pytest.warns(FutureWarning, match="deprecated"):
        nn.utils.weight_norm(hooked)
    model = nn.Sequential(nn.Conv2d(2, 2, 3), hooked)
    for how in ({}, {"example": torch.zeros(1, 2, 8, 8)}):
        with pytest.raises(
            ValueError, match=r"'1' must be a parameter or .* by a hook"
        ):
            bounded(model, 0.5, **how)
        assert not any(parametrize.is_parametrized(module) for module in model)


def test_a_grid_is_of_one_layer():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3))
    with pytest.raises(ValueError, match=r"a Sequential, .* Give an `example`"):
        bounded(model, 0.5, grid=(4, 4))
    assert not any(parametrize.is_parametrized(module) for module in model)


def test_a_number_says_how_often_training_is_certified():
    torch.manual_seed(0)
    module = bounded(nn.Conv2d(2, 2, 3), 0.1, certify=3)
    ratios = []
    for _ in range(4):
        module(torch.ones(1, 2, 4, 4))
        ratios.append(float(module.parametrizations.weight[0].ratio))
    assert ratios[0] == ratios[1] == 1
    assert ratios[2] == ratios[3] != 1
    for bad in (0, "never", 1.5):
        with pytest.raises((ValueError, TypeError), match="`certify` must be"):
            bounded(nn.Conv2d(2, 2, 3), certify=bad)


def test_in_evaluation_mode_it_is_certified_once_per_weight(monkeypatch):
    from convspectra.torch import _scaling

    calls, real = [], _scaling.bound_and_gradient
    monkeypatch.setattr(
        _scaling, "bound_and_gradient", lambda *args: calls.append(1) or real(*args)
    )
    module = bounded(nn.Conv2d(2, 2, 3), 0.1, grid=(4, 4)).eval()
    x = torch.ones(1, 2, 4, 4)
    module(x).sum().backward()
    module(x)
    assert len(calls) == 1
    module.parametrizations.weight.original.data.mul_(2)  # which no version counts
    module(x)
    assert len(calls) == 2
    assert certified(module, 2, 4, 4) <= 0.1


@pytest.mark.parametrize("certify", ["eval", "always"])
def test_the_storage_of_the_parameter_can_still_be_freed(certify):
    module = bounded(nn.Conv2d(2, 2, 3), 0.1, certify=certify)
    parameter = module.parametrizations.weight.original
    module = nn.Sequential(module).train(certify == "always")
    module(torch.ones(1, 2, 4, 4))
    assert parameter.untyped_storage().resizable()


def test_an_interrupted_run_goes_on_as_if_it_had_not_been():
    def steps(module, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            (-module(torch.ones(1, 2, 6, 6)).square().sum()).backward()
            optimizer.step()

    def start():
        torch.manual_seed(0)
        module = bounded(nn.Conv2d(2, 2, 3, padding=1), 0.3, grid=(6, 6))
        return module, torch.optim.Adam(module.parameters(), 0.05)

    whole, optimizer = start()
    steps(whole, optimizer, 8)
    first, optimizer = start()
    steps(first, optimizer, 5)
    second, again = start()
    second.load_state_dict(first.state_dict())
    again.load_state_dict(optimizer.state_dict())
    steps(second, again, 3)
    assert torch.equal(
        whole.parametrizations.weight.original, second.parametrizations.weight.original
    )
    weights = {k: v for k, v in first.state_dict().items() if ".0." not in k}
    second.load_state_dict(weights)  # a checkpoint without vectors


def test_a_checkpoint_of_another_input_size_is_loaded():
    small, large = (
        bounded(nn.Conv2d(2, 2, 3, padding=1), 0.3, grid=grid)
        for grid in ((6, 6), (9, 9))
    )
    large.load_state_dict(small.state_dict())
    weights = [m.parametrizations.weight.original for m in (small, large)]
    assert torch.equal(*weights)
    assert certified(large.eval(), 2, 9, 9) <= 0.3


def test_an_exported_model_is_certified():
    module = bounded(nn.Conv2d(2, 2, 3, padding=1), 0.1, grid=(4, 4))
    x = torch.randn(1, 2, 4, 4)
    exported = torch.export.export(module.eval(), (x,)).module()
    torch.testing.assert_close(exported(x), module(x))
