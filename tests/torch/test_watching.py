"""What a model does is seen where it happens, for as long as it is bounded."""

import copy
import gc
import io
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import EXAMPLE, matrix_of, small, train  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.modules import module as module_hooks  # noqa: E402

import convspectra as cs  # noqa: E402
from convspectra.torch import (  # noqa: E402
    SpectralClip,
    bounded,
    layers,
    penalty,
    project_,
)
from convspectra.torch._record import Recorder  # noqa: E402


def norm_at(module, *shape):
    return np.linalg.norm(matrix_of(copy.deepcopy(module).double(), shape), 2)


def global_hooks():
    return (
        *module_hooks._global_forward_hooks,
        *module_hooks._global_forward_pre_hooks,
        *module_hooks._global_forward_hooks_with_kwargs,
        *module_hooks._global_forward_hooks_always_called,
    )


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    gc.collect()
    before = global_hooks()
    yield
    gc.collect()
    assert global_hooks() == before


def widened():
    """A kernel that stretches large images more than small ones."""
    model = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    return model


@pytest.mark.parametrize("given", [True, False])
def test_a_size_that_comes_later_joins_with_a_warning_once(given):
    model, small_image = widened(), torch.zeros(1, 1, 3, 3)
    bound = SpectralClip(
        model, 1.0, 1, method="scale", example=small_image if given else None
    )
    model(small_image)
    bound.apply()
    assert norm_at(model, 1, 12, 12) > 1.1
    model(torch.zeros(2, 1, 12, 12))
    with pytest.warns(UserWarning, match=r"'Conv2d'.*\(12, 12\).*sizes='every'"):
        bound.apply()
    assert norm_at(model, 1, 12, 12) <= 1
    model(torch.zeros(2, 1, 14, 14))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound.apply()
    assert norm_at(model, 1, 14, 14) <= 1


def test_every_size_is_bounded_from_the_first_pass_on():
    model = widened()
    SpectralClip(model, 1.0, 1, method="project", sizes="every").apply()
    assert norm_at(model, 1, 12, 12) <= 1
    again = widened()
    example = torch.zeros(1, 1, 3, 3)
    SpectralClip(
        again, 1.0, 1, method="project", sizes="every", example=example
    ).apply()
    assert torch.equal(again.weight, model.weight)
    with pytest.raises(ValueError, match="`sizes` must be one of seen, every"):
        SpectralClip(model, sizes="all")


class Standardized(nn.Conv2d):
    def forward(self, x):
        weight = self.weight / self.weight.std()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Padded(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(2, 2, 3, 3))
        self.register_buffer("blur", torch.ones(2, 1, 3, 3))

    def forward(self, x):
        return F.conv2d(x, self.kernel, padding=1)


class Blurred(Plain):
    def forward(self, x):
        return F.conv2d(x, self.blur, groups=2)


def test_a_weight_that_forward_computes_is_not_taken_for_the_parameter():
    model = nn.Sequential(Standardized(2, 2, 3, padding=1), Padded(2, 2, 3))
    done = project_(model, 0.5, torch.zeros(1, 2, 6, 6))
    assert "computes the weight" in done.skipped["0"]
    assert [change.name for change in done.changes] == ["1"]
    assert norm_at(model[1], 2, 6, 6) <= 0.5
    with pytest.raises(ValueError, match="0: its class has a forward of its own"):
        project_(model, 0.5)


@pytest.mark.filterwarnings("ignore")  # torch.ao is deprecated
def test_quantization_aware_layers_are_named():
    from torch.ao.nn.intrinsic.qat import ConvBn2d
    from torch.ao.quantization import get_default_qat_qconfig

    model = nn.Sequential(ConvBn2d(2, 2, 3, qconfig=get_default_qat_qconfig()))
    found = layers(model, torch.randn(2, 2, 6, 6))
    assert not len(found)
    assert "computes the weight" in found.skipped["0"]


def test_a_plain_parameter_is_found_where_it_is_used_and_bounded():
    model = nn.Sequential(Plain(), Blurred())
    excess = norm_at(model[0], 2, 6, 6) - 0.01
    assert penalty(model, 0.01, torch.zeros(1, 2, 6, 6)).item() == pytest.approx(
        excess**2, rel=1e-3
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bound = SpectralClip(model, 0.5, 1, method="project").attach(optimizer)
    model(torch.randn(1, 2, 6, 6)).sum().backward()
    optimizer.step()
    assert [change.name for change in bound.last.changes] == ["0.kernel"]
    assert "buffer" in bound.last.skipped["1"]
    assert norm_at(model[0], 2, 6, 6) <= 0.5
    bound.detach()


class Unpacking(Plain):
    """Takes its input in many ways, and notes whether the call is recorded."""

    def __init__(self):
        super().__init__()
        self.norm, self.is_recorded = nn.BatchNorm2d(2), []

    def forward(self, x):
        modes = torch.overrides._get_current_function_mode_stack()
        self.is_recorded.append(bool(modes))
        if isinstance(x, int):
            x = torch.zeros(1, 2, x, x)
        while not isinstance(x, torch.Tensor):
            x = x.x if isinstance(x, SimpleNamespace) else x[0]
        return self.norm(super().forward(x))


PACKED = {
    "keyword": lambda x: {"x": x},
    "list": lambda x: {"x": [x]},
    "dict": lambda x: {"x": {0: x}},
    "nested": lambda x: {"x": ({0: [x]},)},
    "number": lambda x: {"x": x.shape[-1]},
    "record": lambda x: {"x": SimpleNamespace(x=x)},
    "beside": lambda x: {"x": [SimpleNamespace(x=x), torch.zeros(1)]},
}


@pytest.mark.parametrize("how", PACKED)
def test_a_new_size_is_seen_however_the_input_is_passed(how):
    model = Unpacking()
    recorder = Recorder(model)
    for size in (8, 16, 16, 8):
        model(**PACKED[how](torch.zeros(1, 2, size, size)))
    recorder.close()
    assert [use.geometry.grid for use in recorder.uses] == [(8, 8), (16, 16)]
    # The same sizes are recorded again only if nobody knows that they are.
    is_hidden = how in ("record", "beside")
    assert model.is_recorded == [True, True, is_hidden, is_hidden]


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
def test_nested_tensors_pass_by():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval()
    x, is_padding = torch.randn(2, 3, 4), torch.tensor([[0, 0, 1], [0, 0, 0]]).bool()
    with torch.no_grad():
        want = model(x, src_key_padding_mask=is_padding)
        recorder = Recorder(model)
        for _ in range(2):  # only the second makes nested tensors
            found = model(x, src_key_padding_mask=is_padding)
            torch.testing.assert_close(found[~is_padding], want[~is_padding])
    recorder.close()


def test_calls_that_are_always_recorded_fill_no_memory():
    model = Unpacking()
    recorder = Recorder(model, batch_norms=True)
    for _ in range(5):
        model(SimpleNamespace(x=torch.zeros(1, 2, 8, 8)))
    recorder.close()
    (use,) = recorder.uses
    assert (use.name, use.batch_norm[0]) == ("kernel", "norm")
    assert len(recorder._seen) < 3
    assert not len(recorder._outputs)


def test_only_layers_are_listed_as_skipped():
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 3))
    model = nn.Sequential(conv, nn.Sequential(nn.Conv2d(2, 2, 3)))
    for example in (None, torch.zeros(1, 2, 8, 8)):
        assert layers(model, *() if example is None else (example,)).skipped == {}
        assert set(project_(model, 0.5, example).skipped) == {"0"}


def test_watching_leaves_nothing_on_the_model():
    model = small()
    bound = SpectralClip(model, 0.5, method="scale")
    model(torch.zeros(EXAMPLE))
    twin = copy.deepcopy(model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in twin.modules())
    torch.save(model, io.BytesIO())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scripts are deprecated
        script = torch.jit.script(model)
        traced = torch.jit.trace(model, torch.zeros(EXAMPLE))
        for other in (
            script,
            traced,
            torch.export.export(model, (torch.zeros(EXAMPLE),)).module(),
        ):
            torch.testing.assert_close(
                other(torch.ones(EXAMPLE)), model(torch.ones(EXAMPLE))
            )
    assert bound.apply().changes


@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_another_model_compiles_while_one_is_watched():
    watched, other = small(), nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU())
    bound = SpectralClip(watched, 0.5)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    x = torch.randn(1, 2, 6, 6)
    torch.testing.assert_close(compiled(x), other(x))
    bound.detach()


def test_a_compiled_model_warns_of_no_hooks_once_nothing_is_watched():
    model, x = nn.Sequential(nn.Conv2d(2, 2, 3)), torch.zeros(1, 2, 6, 6)
    layers(model, x)
    SpectralClip(model, 0.5, example=x).detach()
    other = torch.compile(nn.ReLU(), backend="eager")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*global hooks")
        other(x)


def test_nor_while_it_is_bounded_itself():
    model, x = nn.Sequential(nn.Conv2d(2, 2, 3)), torch.zeros(1, 2, 6, 6)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bound = SpectralClip(compiled, 0.5, example=x).attach(optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*global hooks")
        compiled(x)
    bound.detach()


@pytest.mark.parametrize("given", [{}, {"example": torch.zeros(1, 2, 9, 9)}])
@pytest.mark.parametrize("sizes", ["seen", "every"])
def test_layers_that_are_replaced_or_added_are_bounded(given, sizes):
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)),
        torch.zeros(1, 2, 9, 9),
    )
    bound = SpectralClip(model, 0.1, method="scale", sizes=sizes, **given)
    model(x)
    bound.apply()
    model[1] = nn.Conv2d(2, 3, 3)
    model.append(nn.Conv2d(3, 2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a size that is new
        model(x)
        done = bound.apply()
    assert [change.name for change in done.changes] == ["0", "1", "2"]
    assert not done.skipped
    for layer in layers(model, x):
        assert cs.operator_norm(layer.weight, layer.geometry).lower <= 0.1


def test_a_call_that_fails_disturbs_no_later_one():
    model = small()
    bound = SpectralClip(model, 0.5, method="scale")
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, 3, 8, 8))
    assert not torch.overrides._get_current_function_mode_stack()
    model(torch.zeros(EXAMPLE))
    assert len(bound.apply().changes) == 4


class FailsOnce(Plain):
    """Has too little memory in the first call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 1:
            raise torch.OutOfMemoryError
        return super().forward(x)


def test_a_size_at_which_a_call_failed_is_seen_when_one_succeeds():
    model, x = FailsOnce(), torch.zeros(1, 2, 8, 8)
    recorder = Recorder(model)
    with pytest.raises(torch.OutOfMemoryError):
        model(x)
    model(x)
    recorder.close()
    assert [use.geometry.grid for use in recorder.uses] == [(8, 8)]


class Interrupted(nn.Module):
    """Ctrl-C in the first call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return x


class Recursive(nn.Conv1d):
    """Calls itself before it convolves."""

    def forward(self, x):
        coarse = self(x[..., ::2]).mean() if x.shape[-1] > 6 else 0
        return super().forward(x) + coarse


def test_an_interrupted_call_is_forgotten():
    modes = torch.overrides._get_current_function_mode_stack
    for again in (False, True):
        model = nn.Sequential(nn.Conv2d(2, 2, 3), Interrupted())
        bound = SpectralClip(model, 0.5, method="scale")
        with pytest.raises(KeyboardInterrupt):
            model(torch.zeros(1, 2, 8, 8))
        if again:
            model(torch.zeros(1, 2, 8, 8))
            assert not modes()
            assert len(bound.apply().changes) == 1
        with torch.device("cpu"):
            bound.detach()
            assert len(modes()) == 1
        assert not modes()


def test_a_module_that_calls_itself_is_seen_at_all_sizes():
    model = Recursive(1, 1, 3, padding=1)
    bound = SpectralClip(model, 0.5, method="scale")
    model(torch.zeros(1, 1, 12))
    bound.apply()
    assert {use.geometry.grid for use in bound._watch.uses.found} == {(6,), (12,)}
    bound.detach()


def test_a_batch_norm_is_part_of_the_bound_if_asked_for():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3))
    model(3 * torch.randn(5, 2, 6, 6))
    nn.init.normal_(model[1].weight)
    with torch.no_grad():
        model[1].weight[1] = 0
    x = torch.zeros(1, 2, 6, 6)
    for method in ("scale", "project", "clip"):
        own = copy.deepcopy(model)
        before = own[0].weight.detach().clone()
        bound = SpectralClip(own, 0.2, method=method, example=x, fold_batch_norm=True)
        (change,) = bound.apply().changes
        found = norm_at(own.eval(), 2, 6, 6)
        assert change.before > 0.2
        assert found <= (0.2 if method != "clip" else change.after)
        if method == "project":
            assert found > 0.199
            assert torch.equal(own[0].weight[1], before[1])
        own[1].running_var /= 4  # the statistics move, and the bound is enforced again
        assert bound.apply().changes[0].before == pytest.approx(
            2 * change.after, rel=0.05
        )
        bound.detach()


def test_a_bounded_model_may_be_watched():
    model = nn.Sequential(bounded(nn.Conv2d(2, 2, 3), 0.5), nn.Conv2d(2, 2, 3))
    bound = SpectralClip(model, 0.5, 1, method="scale")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bound.attach(optimizer)
    model(torch.randn(1, 2, 8, 8)).sum().backward()
    optimizer.step()
    assert [change.name for change in bound.last.changes] == ["1"]
    bound.detach()


def test_training_without_an_example_sees_each_size_once():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    bound = SpectralClip(model, 0.5, 1, method="scale").attach(optimizer)
    train(model, optimizer, 1)
    recorder = bound._watch.recorder
    calls = len(recorder._calls_seen)
    train(model, optimizer, 2)
    assert len(recorder._calls_seen) == calls
    bound.detach()
