"""Bounds of whole models, judged by Jacobians and by matrices of linear ones."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import matrix_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import convspectra as cs  # noqa: E402
from convspectra._network.compose import compose  # noqa: E402
from convspectra.torch import lipschitz  # noqa: E402
from convspectra.torch._lipschitz import Graph  # noqa: E402
from convspectra.torch._operators import RULES  # noqa: E402
from convspectra.torch._program import Program, overload  # noqa: E402

ROUNDING = 1 + 1e-5  # of Jacobians in single precision
IMAGE, ROWS = (1, 3, 6, 4), (4, 6)
MATRIX = torch.linspace(-1, 1, 24).reshape(6, 4)
FACTORS = torch.tensor([0.5, -2.0, 1.0]).reshape(3, 1, 1)


def batch_norm():
    norm = nn.BatchNorm2d(3)
    norm.weight.data = torch.tensor([0.5, -2.0, 1.0])
    norm.running_var = torch.tensor([0.2, 1.5, 0.1])
    return norm.eval()


def normalization(kind, *sizes, **more):
    """With an epsilon that random inputs come near to."""
    norm = kind(*sizes, eps=4.0, **more)
    norm.weight.data = torch.linspace(-1.5, 1, norm.weight.numel()).view_as(norm.weight)
    return norm


# By name of the operator: a function of arrays of these sizes. And how much larger its
# bound may be than the norm of its Jacobian, the largest at some inputs.
MOVED = {
    "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
    "chunk": lambda x: x.chunk(2, 3)[0],
    "clone": torch.clone,
    "flatten": lambda x: x.flatten(1),
    "flip": lambda x: x.flip(2),
    "narrow": lambda x: x.narrow(2, 1, 4),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "reshape": lambda x: x.reshape(6, -1),
    "roll": lambda x: x.roll(2, 3),
    "select": lambda x: x[:, 1],
    "slice": lambda x: x[:, :, 1:6:2],
    "split": lambda x: x.split(2, 2)[1],
    "split_with_sizes": lambda x: x.split([1, 3], 3)[1],
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "squeeze, all": lambda x: x[:, :1].squeeze(),
    "squeeze, axes": lambda x: x[:, :1].squeeze((0, 1)),
    "alias": torch.ops.aten.alias,
    "unsafe_view": lambda x: x.transpose(1, 2).flatten(1),
    "transpose": lambda x: x.transpose(1, 2),
    "unbind": lambda x: x.unbind(1)[2],
    "unflatten": lambda x: x.unflatten(2, (2, 3)),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "view": lambda x: x.view(3, 2, -1),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "to": lambda x: x.to(torch.float64),
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(2)[0],
    "max, all": torch.max,
    "min, all": torch.min,
    "min": lambda x: x.min(2)[0],
    "amin": lambda x: x.amin((1, 2)),
    "pad, constant": lambda x: F.pad(x, (1, 2), value=3.0),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 3, 6), 2),
    "t": lambda x: x[0, 0].t(),
    "zeros_like": lambda x: x + torch.zeros_like(x),
    "full_like": lambda x: x + torch.full_like(x, 3.0),
    "new_full": lambda x: x + x.new_full((4,), 3.0),
    "new_ones": lambda x: x + x.new_ones(4),
    "new_zeros": lambda x: x + x.new_zeros(4),
}
SLOPES = {
    "abs": torch.abs,
    "atan": torch.atan,
    "celu": F.celu,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_max": lambda x: x.clamp_max(0.5),
    "clamp_min": lambda x: x.clamp_min(0.5),
    "cos": torch.cos,
    "elu": lambda x: F.elu(x, 1.5),
    "erf": torch.erf,
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "leaky_relu": lambda x: F.leaky_relu(x, -1.25),
    "log_sigmoid": F.logsigmoid,
    "mish": F.mish,
    "neg": torch.neg,
    "relu": torch.relu,
    "relu6": F.relu6,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "silu, by hand": lambda x: x * x.sigmoid(),
    "sin": torch.sin,
    "softplus": lambda x: F.softplus(x, 3.0),
    "tanh": torch.tanh,
}
LINEAR = {
    "conv1d": (nn.Conv1d(3, 2, 3, 2, 1), (1, 3, 9)),
    "conv2d": (nn.Conv2d(3, 4, 3, 2, 1), (1, 3, 8, 6)),
    "conv1d, same": (nn.Conv1d(2, 2, 4, padding="same"), (1, 2, 7)),
    "conv3d, same": (nn.Conv3d(1, 1, 2, padding="same"), (1, 1, 3, 2, 3)),
    "conv2d, same": (nn.Conv2d(2, 2, (2, 3), padding="same"), (1, 2, 5, 4)),
    "conv2d, no batch": (nn.Conv2d(2, 2, 3), (2, 5, 4)),
    "conv3d": (nn.Conv3d(1, 2, 2), (1, 1, 3, 4, 3)),
    "conv_transpose1d": (nn.ConvTranspose1d(2, 3, 3, 2), (1, 2, 5)),
    "conv_transpose2d": (nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), (1, 2, 4, 3)),
    "conv_transpose3d": (nn.ConvTranspose3d(1, 2, 2), (1, 1, 3, 2, 2)),
    "linear": (nn.Linear(6, 4), (2, 3, 6)),
    "matmul": (lambda x: x @ MATRIX, ROWS),
    "matmul, left": (lambda x: MATRIX @ x, ROWS),
    "mm": (lambda x: torch.mm(x, MATRIX), ROWS),
    "addmm": (lambda x: torch.addmm(torch.ones(4), x, MATRIX, alpha=-3), ROWS),
    "batch_norm": (batch_norm(), IMAGE),
    "mul": (lambda x: -2.5 * x, IMAGE),
    "mul, channels": (lambda x: FACTORS * x, IMAGE),
    "div": (lambda x: x / 0.4, IMAGE),
    "expand": (lambda x: x.expand(5, 3), (1, 3)),
    "repeat": (lambda x: x.repeat(2, 3), ROWS),
    "tile": (lambda x: x.tile(2, 3), ROWS),
    "sum": (lambda x: x.sum((1, 2)), IMAGE),
    "sum, all": (torch.sum, ROWS),
    "mean": (lambda x: x.mean((2, 3), keepdim=True), IMAGE),
    "mean, all": (torch.mean, IMAGE),
    "pad": (lambda x: F.pad(x, (2, 1, 2, 3), "reflect"), IMAGE),
    "pad, circular": (lambda x: F.pad(x, (2, 1), "circular"), (1, 2, 3)),
    "pad, replicate": (lambda x: F.pad(x, (2, 1, 0, 3), "replicate"), IMAGE),
    "upsample_nearest2d": (lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    "upsample_nearest3d": (lambda x: F.interpolate(x, (4, 4, 2)), (1, 1, 2, 2, 2)),
    "upsample_nearest1d": (lambda x: F.interpolate(x, 7), (1, 2, 5)),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d((3, 2)), IMAGE),
    "adaptive_avg_pool3d": (nn.AdaptiveAvgPool3d(2), (1, 1, 4, 2, 2)),
    "avg_pool2d": (nn.AvgPool2d(2), IMAGE),
}
# Schur's test is not always tight, nor is the triangle's inequality.
LOOSE = {
    "mul, repeated": (lambda x: FACTORS * x, (2, 1, 1, 1), 1.6),
    "detach": (lambda x: x + x.detach(), IMAGE, 2),  # which autograd does not see
    "cumsum": (lambda x: x.cumsum(1), ROWS, 1.7),
    "avg_pool1d": (nn.AvgPool1d(3, 2, 1, count_include_pad=False), (1, 2, 7), 1.3),
    "avg_pool2d, ceil": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), IMAGE, 1.7),
    "avg_pool3d": (nn.AvgPool3d(2, 1), (1, 1, 4, 3, 3), 1.5),
    "adaptive_avg_pool1d": (nn.AdaptiveAvgPool1d(3), (1, 2, 7), 1.3),
    "upsample_bilinear2d": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        IMAGE,
        1.2,
    ),
    "upsample_linear1d": (
        lambda x: F.interpolate(x, 9, mode="linear", align_corners=True),
        (1, 2, 5),
        1.2,
    ),
    "upsample_trilinear3d": (
        lambda x: F.interpolate(x, (4, 4, 2), mode="trilinear"),
        (1, 1, 2, 2, 2),
        1.2,
    ),
    "softmax": (lambda x: x.softmax(1), (3, 2), 1.1),
    "log_softmax": (lambda x: (5 * x).log_softmax(0) / 5, (4, 3), 1.1),
    "layer_norm": (normalization(nn.LayerNorm, 6), ROWS, 2),
    "rms_norm": (normalization(nn.RMSNorm, 6), ROWS, 2),
    "group_norm": (normalization(nn.GroupNorm, 3, 3), IMAGE, 2),
    "instance_norm": (normalization(nn.InstanceNorm2d, 3, affine=True), IMAGE, 2),
    "prelu": (nn.PReLU(3, init=-1.5), IMAGE, 1.01),
    "max_pool1d": (nn.MaxPool1d(3, 1, dilation=2), (1, 2, 9), 1.8),
    "max_pool2d": (nn.MaxPool2d(3, 2, 1), IMAGE, 1.5),
    "max_pool3d": (nn.MaxPool3d(2), (1, 1, 4, 4, 2), 1),
    "add": (lambda x: torch.add(x, x[:, :, :1], alpha=2), IMAGE, 1.3),
    "sub": (lambda x: torch.sub(x, x.flip(3), alpha=2), IMAGE, 1.01),
    "rsub": (lambda x: torch.rsub(x, 1, alpha=3), IMAGE, 1),
    "cat": (lambda x: torch.cat([x, 2 * x, torch.ones_like(x)], 1), IMAGE, 1),
    "stack": (lambda x: torch.stack([x, x.flip(1)]), IMAGE, 1),
    "maximum": (lambda x: torch.maximum(x, 3 * x), IMAGE, 1.1),
    "minimum": (lambda x: torch.minimum(x, x[:, :, :1]), IMAGE, 3),
    "logsumexp": (lambda x: x.logsumexp(3), IMAGE, 2),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1), IMAGE, 1),
}
CASES = (
    {name: (f, IMAGE, 1) for name, f in MOVED.items()}
    | {name: (f, (1, 200), 1.01) for name, f in SLOPES.items()}
    | {name: (*case, 1.001) for name, case in LINEAR.items()}
    | LOOSE
)


class Every(nn.Module):
    """All cases in one model, an input and an output each."""

    def __init__(self):
        super().__init__()
        functions = (f for f, *_ in CASES.values())
        self.parts = nn.ModuleList(f for f in functions if isinstance(f, nn.Module))

    def forward(self, *inputs):
        return [f(x) for (f, *_), x in zip(CASES.values(), inputs)]


@pytest.fixture(scope="module")
def every():
    """The bound of each case by itself, and the operators of all of them."""
    inputs = tuple(torch.zeros(shape) for _, shape, _ in CASES.values())
    program = Program(Every().eval(), inputs, {})
    graph = Graph(program)
    bounds = [compose(graph.nodes, [output], 1e-4) for output in graph.outputs]
    return dict(zip(CASES, bounds, strict=True)), set(map(overload, program.calls()))


def largest_of_jacobians(f, shape, rng):
    """The largest norm of a Jacobian at some inputs, small and large."""
    found = []
    for size in (0.01, 1.0, 3.0):
        x = torch.from_numpy(size * rng.standard_normal(shape)).float()
        matrix = torch.autograd.functional.jacobian(f, x)
        found.append(torch.linalg.matrix_norm(matrix.reshape(-1, x.numel()), 2))
    return float(max(found))


@pytest.mark.parametrize("case", CASES)
def test_no_jacobian_exceeds_the_bound_of_an_operator(case, every, rng):
    bounds, _ = every
    f, shape, loose = CASES[case]
    found = largest_of_jacobians(f, shape, rng)
    assert found <= bounds[case].upper * ROUNDING
    assert bounds[case].upper <= found * loose * ROUNDING
    assert not bounds[case].unknown


def test_every_rule_has_a_case(every):
    _, operators = every
    assert set(RULES) - operators == set()


class Function(nn.Module):
    """A model that is one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *x):
        return self.function(*x)


def operator_of_others(name, function):
    """An operator of another library, with the name of one of PyTorch's."""

    @torch.library.custom_op(f"convspectra_tests::{name}", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        return function(x)

    operator.register_fake(torch.empty_like)
    return operator


ten_times = operator_of_others("relu", lambda x: 10 * x)
square = operator_of_others("sigmoid", torch.clone)
WIDE = torch.zeros(5, 4)
BITS = torch.tensor([5.0, 0.0, 5.0, 0.0]).view(torch.int32)
TINY = torch.full((4,), 1e-9)


def hidden(x):
    z = torch.zeros_like(x)
    z.data = x
    return 7 * z


def hidden_in_a_sum(x):
    return 1e4 + hidden(x)


def hidden_beside_a_mask(x):
    return torch.cat([hidden(x), torch.full_like(x, -math.inf)])


# What looks like an operator with a bound, and has another or none: a function, the
# sizes of its input, and what two inputs attain at least.
OTHER_ARGUMENTS = {
    "of another library": (ten_times, (1, 4), 10),
    "a gate of another library": (lambda x: x * square(x), (1, 4), math.inf),
    "larger of x and a wider constant": (lambda x: torch.max(x, WIDE), (1, 4), 5**0.5),
    "clamped by a wider constant": (lambda x: x.clamp(WIDE - 9), (1, 4), 5**0.5),
    "one size for both axes": (lambda x: F.max_pool2d(x, [3], [1]), (1, 1, 9, 9), 3),
    "bytes of numbers": (
        lambda x: x.view(torch.bfloat16).float(),
        (1, 4),
        math.inf,
    ),
    "celu that grows": (lambda x: F.celu(x, -1.0), (1, 4), math.inf),
    "elu that grows": (lambda x: torch.ops.aten.elu(x, 1, 1, -1), (1, 4), math.inf),
    "elu with a negative scale": (lambda x: torch.ops.aten.elu(x, 1, -2), (1, 4), 2),
    "softplus that jumps": (lambda x: F.softplus(x, 1, -3), (1, 4), math.inf),
    "averages with another divisor": (
        lambda x: F.avg_pool2d(x, 3, 1, 1, divisor_override=-1),
        (1, 1, 8, 8),
        7.8,
    ),
    "random factors": (lambda x: x * torch.randn(1, 4), (1, 4), math.inf),
    "dropout in training": (lambda x: F.dropout(x, 0.5, True), (1, 4), math.inf),
    "a bias that depends on the input": (
        lambda x: F.linear(x, torch.eye(4), x[0]),
        (1, 4),
        2,
    ),
    "matrices that depend on the input": (lambda x: x @ x.T, (3, 4), math.inf),
    "a vector": (lambda x: x @ torch.ones(4), (3, 4), 2),
    "one output": (lambda x: F.linear(x, torch.ones(4)), (3, 4), 2),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda a: 5 * a, lambda a: a.clone(), (x,)),
        (3, 4),
        math.inf,
    ),
    "a number": (lambda x: x * x.max().item(), (3, 4), math.inf),
    "a sum of whole numbers": (lambda x: x.sum(dtype=torch.int64), (3, 4), math.inf),
    "a norm of the batch": (
        lambda x: F.batch_norm(x, None, None, training=True),
        (4, 3),
        math.inf,
    ),
    "a variance below zero": (
        lambda x: F.batch_norm(x, torch.zeros(3), -torch.ones(3)),
        (4, 3),
        math.inf,
    ),
    "slopes that are no numbers": (
        lambda x: F.prelu(x, torch.tensor([math.nan])),
        (4, 3),
        math.inf,
    ),
    "bits of constants": (lambda x: x * BITS.view(torch.float32), (1, 4), 5),
    "constants close to zero": (lambda x: x * torch.logit(TINY), (1, 4), 20.7),
    "random constants in a branch": (
        lambda x: x * torch.cond(TINY.sum() > 0, torch.rand_like, torch.cos, (TINY,)),
        (1, 4),
        math.inf,
    ),
    "a size that depends on numbers": (lambda x: x[x > 0], (1, 4), math.inf),
    "places that depend on numbers": (lambda x: TINY[(3 * x).long()], (1, 4), math.inf),
    "a factor that depends on numbers": (
        lambda x: torch.add(x, TINY, alpha=x.sum().item()),
        (1, 4),
        math.inf,
    ),
    "what the trace does not see": (hidden, (1, 4), 7),
    "what a large sum hides": (hidden_in_a_sum, (1, 4), 7),
    "what is hidden beside a mask": (hidden_beside_a_mask, (1, 4), 7),
    "a constant that depends on numbers": (
        lambda x: torch.full_like(x, x.sum().item()),
        (1, 4),
        1,
    ),
    "nothing": (lambda x: x[:, :0] + 1, (4, 3), 0),
    "pads that are infinite": (
        lambda x: F.pad(x, (1, 1), value=-math.inf)[:, 1:-1],
        (1, 4),
        1,
    ),
}


@pytest.mark.parametrize("case", OTHER_ARGUMENTS)
def test_other_arguments_have_another_bound_or_none(case):
    function, shape, least = OTHER_ARGUMENTS[case]
    bounds = lipschitz(Function(function), torch.rand(shape))
    assert bounds.upper >= least
    assert bounds.lower <= bounds.upper
    assert math.isfinite(bounds.upper) == (not bounds.unknown)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: 0.7 * x, 0.7),
        (lambda x: x / 0.3, 1 / 0.3),
        (lambda x: x * 1e-50 * 1e50, 1),
        (nn.RMSNorm(4), 2**26),
        (lambda x: x * 1e-200 * 1e-200 * 1e200 * 1e200, 1),
        (lambda x: x.expand(3, 4), 3**0.5),
        (F.hardsigmoid, 1 / 6),
    ],
)
def test_bounds_in_double_precision_are_not_rounded_down(function, expected):
    x = torch.ones(1, 4, dtype=torch.float64)
    upper = lipschitz(Function(function), x).upper
    assert expected <= upper
    assert upper <= expected * (1 + 1e-12) or upper > 1e100  # digits are lost below


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1e12) - 1e12,
        lambda x: x.bfloat16().float(),
        nn.RMSNorm(4),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 1)),
        lambda x: x + torch.randn(1, 4),
    ],
)
def test_rounding_is_no_change_of_the_output(function):
    for size in (1e-9, 0.1):
        x = size * torch.rand(1, 4)
        bounds = lipschitz(Function(function), x, rtol=1e-9)
        assert bounds.lower <= bounds.upper


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_normalization_has_the_epsilon_of_its_own_precision(dtype):
    model, x = nn.RMSNorm(4).to(dtype), torch.tensor([[1e-4, 0, 0, 0]], dtype=dtype)
    gain = float(model(x).detach().double().norm() / x.double().norm())
    assert lipschitz(model, torch.zeros(1, 4, dtype=dtype)).upper >= gain


def test_an_array_that_is_given_twice_is_two_inputs():
    x = torch.randn(1, 4)
    gated = lipschitz(Function(lambda a, b: a * b.sigmoid()), x, x)
    assert gated.upper == math.inf
    added = lipschitz(Function(torch.add), x, x)
    assert added.lower == pytest.approx(2**0.5, rel=1e-2)


def test_an_array_of_the_model_is_an_input_too():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.ones(1, 4))

        def forward(self, x):
            return 3 * x + 10 * self.b

    model = Biased()
    assert lipschitz(model, model.b).lower == pytest.approx(3)


def test_attention_without_dropout_is_not_random():
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    x = [torch.randn(1, 3, 4) for _ in range(3)]
    bounds = lipschitz(model, *x, need_weights=False)
    assert bounds.upper == math.inf
    assert bounds.lower > 0


def test_a_layer_that_is_almost_nothing_is_not_lost():
    class Tiny(nn.Module):
        def forward(self, x):
            x = F.linear(x, 1e-200 * torch.eye(4, dtype=torch.float64))
            factors = torch.tensor([1e-200, 1, 1, 1], dtype=torch.float64)
            return 1e200 * (1e200 * (factors * x)[:, :1])

    x = torch.ones(1, 4, dtype=torch.float64)
    assert lipschitz(Tiny(), x).upper >= 1


def test_a_lower_precision_on_the_way_is_rounding():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x):
            weight = self.layer.weight.bfloat16()
            return F.linear(x.bfloat16(), weight).float().sin()

    assert lipschitz(Mixed(), torch.randn(2, 32)).upper < math.inf


def test_buffers_of_any_kind():
    class Buffers(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sparse", torch.eye(2).to_sparse())
            self.register_buffer("none", torch.ones(2, device="meta"))

        def forward(self, x):
            return 2 * x

    assert lipschitz(Buffers(), torch.ones(1, 2)).upper == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rtol": 2}, "rtol"), ({"budget": -1}, "budget")],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        lipschitz(nn.Linear(2, 2), torch.ones(1, 2), **arguments)


def test_a_function_is_no_model():
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got function"):
        lipschitz(lambda x: x, torch.ones(2))


class Network(nn.Module):
    """Residual, with pools, concatenation and everything in its usual place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.inner = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        x = x + F.silu(self.inner(x))
        x = torch.cat([self.pool(x), F.avg_pool2d(x, 2)], 1)
        return self.head(x.mean((2, 3)))


def norm_of(model, shape):
    return np.linalg.norm(matrix_of(copy.deepcopy(model).double(), shape), 2)


def test_a_batch_norm_belongs_to_the_convolution_before_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3, 3, 2, 1, bias=False), batch_norm())
    bounds = lipschitz(model.eval(), torch.randn(2, 3, 8, 6))
    model[1].running_mean.zero_()
    norm = norm_of(model, (3, 8, 6))
    assert [part.name for part in bounds.parts] == ["0+1"]
    assert bounds.lower <= norm * (1 + 1e-9)
    assert norm <= bounds.upper <= norm * 1.001
    assert bounds.lower >= 0.98 * norm


def test_layers_in_a_row_are_multiplied():
    torch.manual_seed(0)
    first, last = nn.Conv1d(2, 3, 3, padding=1, bias=False), nn.Linear(7, 2, bias=False)
    model = nn.Sequential(first, nn.Tanh(), last)
    bounds = lipschitz(model, torch.zeros(1, 2, 7), rtol=1e-6)
    linear = nn.Sequential(first, last)  # which it is near zero
    assert bounds.upper == pytest.approx(
        norm_of(first, (2, 7)) * norm_of(last, (3, 7)), rel=1e-5
    )
    assert bounds.lower == pytest.approx(norm_of(linear, (2, 7)), rel=0.02)
    assert bounds.parts[-1].total == bounds.upper


def test_a_network_is_left_as_it_was(rng):
    torch.manual_seed(1)
    model, x = Network().train(), torch.randn(3, 2, 8, 8)
    before = copy.deepcopy(model.state_dict())
    bounds = lipschitz(model, x)
    assert model.training
    assert all(torch.equal(a, before[k]) for k, a in model.state_dict().items())
    jacobian = torch.autograd.functional.jacobian(model.double().eval(), x.double())
    gain = float(torch.linalg.matrix_norm(jacobian.reshape(9, -1), 2))
    assert 0.95 * gain <= bounds.lower <= bounds.upper < math.inf
    for _ in range(20):
        a, b = (torch.from_numpy(rng.standard_normal((1, 2, 8, 8))) for _ in range(2))
        assert (model(a) - model(b)).norm() <= bounds.upper * (a - b).norm()


def test_the_lower_bound_is_attained_where_derivatives_are_not():
    def zero(x):  # whose derivative at zero is 1, by autograd
        return x - F.relu(x) + F.relu(-x)

    class Zero(nn.Module):
        def forward(self, x):
            return zero(x)

    assert torch.autograd.functional.jacobian(zero, torch.zeros(2)).norm() > 1
    assert lipschitz(Zero(), torch.zeros(1, 2)).lower == 0


class Attention(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.gate, self.last = nn.Linear(4, 4), last

    def forward(self, x):
        return self.last(x * self.gate(x).sigmoid())


def test_what_has_no_bound_is_named():
    bounds = lipschitz(Attention(nn.Linear(4, 4)), torch.randn(2, 4))
    assert bounds.upper == math.inf
    (name,) = bounds.unknown
    assert name == "mul"
    assert "both depend on the input" in bounds.unknown[name]
    assert bounds.lower > 0
    assert "without an upper bound" in str(bounds)
    assert "inf" in bounds.table()


def test_a_model_that_is_constant():
    class Constant(nn.Module):
        def forward(self, x):
            return torch.zeros_like(x), torch.ones(3)

    bounds = lipschitz(Constant(), torch.randn(2, 4))
    assert (bounds.lower, bounds.upper) == (0, 0)


def test_weights_that_are_computed_count_as_they_are():
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 3, bias=False))
    bounds = lipschitz(layer, torch.randn(1, 2, 6, 6))
    weight = layer.weight.detach().numpy()
    norm = cs.operator_norm(weight, cs.Geometry((6, 6), padding=0, boundary="zeros"))
    assert bounds.upper == pytest.approx(float(norm.upper), rel=2e-3)


def test_all_inputs_are_one_and_what_is_not_real_is_constant():
    class Two(nn.Module):
        def forward(self, x, count, *, y):
            return x * count + 3 * y, 4 * x

    bounds = lipschitz(Two(), torch.ones(2, 3), torch.tensor(2), y=torch.ones(2, 3))
    assert bounds.upper == pytest.approx(math.hypot(2 + 3, 4))
    exact = np.linalg.norm([[2, 3], [4, 0]], 2)
    assert bounds.lower == pytest.approx(exact, rel=1e-2)


def test_indices_have_no_bound():
    class Chosen(nn.Module):
        def forward(self, x):
            return x.argmax(1).float()

    bounds = lipschitz(Chosen(), torch.randn(2, 3))
    assert bounds.upper == math.inf
    assert "no array of real numbers" in bounds.unknown["argmax"]


def test_half_precision():
    model = nn.Conv2d(2, 2, 3, bias=False).bfloat16()
    bounds = lipschitz(model, torch.randn(1, 2, 6, 6, dtype=torch.bfloat16))
    assert bounds.lower <= norm_of(model, (2, 6, 6)) <= bounds.upper


def test_models_that_cannot_be_traced():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match=r"must be one that torch\.export can trace"):
        lipschitz(Branches(), torch.ones(2))


def test_results_that_are_no_real_numbers_have_no_bound():
    bounds = lipschitz(Function(lambda x: x > 0), torch.randn(2, 3))
    assert (bounds.lower, bounds.upper) == (0, math.inf)


def test_in_inference_mode():
    model = nn.Linear(3, 2)
    with torch.inference_mode():
        bounds = lipschitz(model, torch.randn(2, 3))
    assert 0 < bounds.lower <= bounds.upper


def test_an_example_of_whole_numbers():
    with pytest.raises(ValueError, match="must hold an array of real numbers"):
        lipschitz(nn.Embedding(3, 2), torch.tensor([1]))


def test_an_upper_bound_that_is_a_little_too_low_is_noticed(monkeypatch):
    def too_low(*args):
        found = compose(*args)
        return replace(found, upper=found.upper * (1 - 1e-4))

    model, example = nn.Linear(1, 1), torch.ones(1, 1)
    lipschitz(model, example, rtol=1e-6)
    monkeypatch.setattr("convspectra.torch._lipschitz.compose", too_low)
    with pytest.raises(ArithmeticError, match="must not exceed the upper one"):
        lipschitz(model, example, rtol=1e-6)
