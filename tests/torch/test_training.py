"""A bound that holds while a network trains."""

import copy
import itertools
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import EXAMPLE, matrix_of, small, train  # noqa: E402
from torch import nn  # noqa: E402

import convspectra as cs  # noqa: E402
from convspectra._bound import scale  # noqa: E402
from convspectra.torch import (  # noqa: E402
    SpectralClip,
    bounded,
    clip_,
    layers,
    penalty,
    project_,
)
from convspectra.torch._pass import (  # noqa: E402
    Change,
    Known,
    Pass,
    _views,
    reuse_if_unmoved,
)


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small are slower in threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def example():
    return torch.zeros(EXAMPLE)


def norms(model):
    """What each layer does, by the matrix of its module; in double precision."""
    found = {}
    for layer in layers(model, example()):
        matrix = cs.dense_matrix(layer.weight.double(), layer.geometry).numpy()
        found[layer.name] = np.linalg.norm(matrix, 2)
    return found


@pytest.mark.parametrize("change", [clip_, project_])
def test_in_place_all_layers_are_bounded_and_linear_ones_on_demand(change):
    model = small()
    before = norms(model)
    done = change(model, 0.5, example())
    after = norms(model)
    assert after["4"] == before["4"]
    assert "Linear" in done.skipped["4"]
    assert [c.name for c in done.changes] == ["0", "1.inner", "1.shortcut", "2"]
    for name in after.keys() - {"4"}:
        assert before[name] > 0.5
        assert after[name] < (0.5 * (1 + 1e-6) if change is project_ else before[name])
    change(model, {"4": 0.25}, example(), linear=True)
    assert norms(model)["4"] == pytest.approx(0.25, rel=1e-3)


def test_a_clip_is_that_of_the_library():
    model, found = small(), small()
    clip_(found, 0.5, example())
    (layer, *_) = layers(model, example())
    assert torch.equal(cs.clip(layer.weight, layer.geometry, 0.5), found[0].weight)
    clip_(model, 0.5)  # on a torus that is fine against the kernel
    assert not torch.equal(model[0].weight, found[0].weight)
    assert norms(model)["0"] < 0.7


def test_without_an_example_a_projection_holds_on_every_size():
    model = nn.Conv1d(2, 3, 3, padding=1).double()
    (change,) = project_(model, 0.5).changes
    assert change.after <= 0.5
    for n in range(3, 40):
        assert np.linalg.norm(matrix_of(model, (2, n)), 2) <= 0.5


def test_norms_before_and_after_are_certified():
    model = small()
    before = norms(model)
    done = project_(model, 0.5, example())
    after = norms(model)
    for change in done.changes:
        ends = [x for x in before if x.partition("@")[0] == change.name]
        assert change.before >= max(before[x] for x in ends) * (1 - 1e-9)
        assert change.after >= max(after[x] for x in ends) * (1 - 1e-6)
        assert change.after <= 0.5
    assert "1.inner" in str(done)


def test_what_is_printed_of_a_pass_hides_no_excess():
    changes = (Change("conv", 2.0, 0.50004, 0.5), Change("other", 2.0, 0.49996, 0.5))
    _, *lines = str(Pass(changes, {}, 0.0)).splitlines()
    assert [line.split() for line in lines] == [
        ["conv", "2", "0.5001", "0.5"],
        ["other", "2", "0.5", "0.5"],
    ]


def test_bounds_by_pattern_and_the_first_that_matches_counts():
    model = small()
    done = project_(model, {"1.short*": None, "1.*": 0.3, "0": 0.6}, example())
    bounds = {change.name: change.max_norm for change in done.changes}
    assert bounds == {"1.inner": 0.3, "0": 0.6}
    assert set(done.skipped) == {"1.shortcut", "2", "4"}
    with pytest.raises(ValueError, match=r"'nothing' matches none of 0, 1\.inner"):
        project_(model, {"nothing": 1.0}, example())


def test_a_module_at_several_sizes_is_inside_at_each():
    model = small()
    project_(model, 0.4, example())
    found = norms(model)
    assert found["1.inner@8x8"] <= 0.4 * (1 + 1e-9)
    assert found["1.inner@4x4"] <= 0.4 * (1 + 1e-9)


def test_tied_weights_are_moved_once():
    a, b = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3)
    b.weight = a.weight
    done = project_(nn.Sequential(a, b), 0.3, torch.zeros(1, 2, 6, 6))
    assert len(done.changes) == 1
    assert a.weight is b.weight
    assert np.linalg.norm(matrix_of(a.double(), (2, 6, 6)), 2) <= 0.3
    assert np.linalg.norm(matrix_of(b.double(), (2, 6, 6)), 2) <= 0.3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_keep_their_precision_and_layout(dtype):
    model = small().to(dtype).to(memory_format=torch.channels_last)
    done = project_(model, 0.5)
    assert model[0].weight.dtype == dtype
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert all(change.after <= 0.5 for change in done.changes)
    (layer, *_) = layers(model)
    assert cs.operator_norm(layer.weight.double(), layer.geometry).lower <= 0.5


def test_parametrized_and_frozen_weights():
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3))
    nn.utils.parametrizations.weight_norm(model[0])
    model[1].weight.requires_grad_(False)
    x = torch.zeros(1, 1, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bound = SpectralClip(model, 0.1, 1, example=x).attach(optimizer)
    before = copy.deepcopy(model.state_dict())
    skipped = bound.apply().skipped
    assert "parametrization" in skipped["0"]
    assert "frozen" in skipped["1"]
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert project_(model, 0.1, x).skipped == skipped
    with pytest.raises(ValueError, match="all of its layers are frozen"):
        project_(model[1], 0.1, x)


@pytest.mark.parametrize("method", ["clip", "project", "scale"])
def test_every_so_many_steps(method):
    model = small()
    keys = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    bound = SpectralClip(model, 0.5, 4, method=method, example=example())
    assert bound.attach(optimizer) is bound
    train(model, optimizer, 3)
    assert (bound.steps, bound.last) == (3, None)
    train(model, optimizer, 1, first=3)
    assert (bound.steps, bound.passes) == (4, 1)
    assert list(model.state_dict()) == keys
    if method != "clip":
        assert max(change.after for change in bound.last.changes) <= 0.5
    assert 0 < bound.share < 1
    assert "4 steps, 1 passes" in repr(bound)
    bound.detach()
    train(model, optimizer, 4, first=4)
    assert bound.steps == 4


def test_hundreds_of_steps_never_leave_the_ball():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 2, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
    ).double()
    x = torch.randn(2, 2, 4, 4).double()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    SpectralClip(model, 0.7, 1, method="project", example=x).attach(optimizer)
    largest = []
    for _ in range(250):
        optimizer.zero_grad()
        (-model(x).square().mean()).backward()
        optimizer.step()
        matrices = (matrix_of(model[i], (2, 4, 4)) for i in (0, 2))
        largest.append(max(np.linalg.norm(matrix, 2) for matrix in matrices))
    assert max(largest) <= 0.7 * (1 + 1e-9)
    assert min(largest[100:]) > 0.699  # it is the bound that holds them


def test_beside_the_norm_of_the_reshaped_kernel():
    """On the same seeds: with torch's spectral_norm the layers have norms above 1."""

    def trained(bound):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1)
        )
        x = torch.randn(8, 2, 6, 6)
        bound(model, x)
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(40):
            optimizer.zero_grad()
            (-model(x).square().mean()).backward()
            optimizer.step()
        model.double().eval()
        shapes = ((2, 6, 6), (4, 6, 6))
        matrices = [matrix_of(model[2 * i], shape) for i, shape in enumerate(shapes)]
        return [np.linalg.norm(matrix, 2) for matrix in matrices]

    def by_spectral_norm(model, _):
        for i in (0, 2):
            nn.utils.parametrizations.spectral_norm(model[i])

    assert min(trained(by_spectral_norm)) > 1.3
    ours = trained(lambda model, x: bounded(model, 1.0, example=x))
    assert max(ours) <= 1
    assert min(ours) > 0.999


def test_without_an_example_the_model_is_watched():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    bound = SpectralClip(model, 0.5, 2, method="scale").attach(optimizer)
    with pytest.raises(RuntimeError, match="must have run"):
        SpectralClip(small()).apply()
    train(model, optimizer, 2)
    assert max(value for name, value in norms(model).items() if name != "4") <= 0.5
    assert not any(module._forward_hooks for module in model.modules())
    assert [change.name for change in bound.last.changes] == [
        *("0", "1.inner", "1.shortcut", "2"),
    ]
    with pytest.raises(ValueError, match="pass an `example`"):
        SpectralClip(torch.compile(model, backend="eager"))


def test_gradient_accumulation_counts_as_one_step():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    bound = SpectralClip(model, 0.5, 1, example=example()).attach(optimizer)
    for step in range(6):
        model(torch.ones(EXAMPLE)).sum().backward()
        if step % 3 == 2:
            optimizer.step()
    assert bound.steps == 2


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_leaves_out_does_not_count(fused):
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), 0.05, fused=fused)
    bound = SpectralClip(model, 0.5, 1, example=example()).attach(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    for factor, steps in [(1.0, 1), (float("inf"), 1), (1.0, 2)]:
        optimizer.zero_grad()
        scaler.scale(factor * model(torch.ones(EXAMPLE)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert bound.steps == steps


@pytest.mark.parametrize("method", ["clip", "project", "scale"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(method, tmp_path):
    def start():
        model = small()
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        bound = SpectralClip(model, 0.5, 3, method=method, example=example())
        return model, optimizer, bound.attach(optimizer)

    whole, optimizer, bound = start()
    train(whole, optimizer, 10)
    first, optimizer, bound = start()
    train(first, optimizer, 5)
    parts = first.state_dict(), optimizer.state_dict(), bound.state_dict()
    torch.save(parts, tmp_path / "checkpoint.pt")
    second, optimizer, bound = start()
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for part, state in zip((second, optimizer, bound), loaded):
        part.load_state_dict(state)
    train(second, optimizer, 5, first=5)
    assert bound.steps == 10
    assert bound.passes == 3
    for a, b in zip(whole.parameters(), second.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("how", ["state_dict", "deepcopy"])
def test_what_is_known_of_a_kernel_survives(how, tmp_path):
    torch.manual_seed(0)
    model = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")

    def bounding(size):
        example = torch.zeros(1, 2, size, size)
        return SpectralClip(model, 10.0, 1, method="project", example=example)

    bound = bounding(8)
    measured = bound.apply().changes[0].after
    with torch.no_grad():
        model.weight += 1e-4
    second = copy.deepcopy(bound)
    if how == "state_dict":
        torch.save(bound.state_dict(), tmp_path / "bound.pt")
        second = bounding(8)
        second.load_state_dict(torch.load(tmp_path / "bound.pt", weights_only=True))
    one, other = (each.apply().changes[0].after for each in (bound, second))
    assert one == other > measured  # nobody has measured it again
    third = bounding(9)
    third.load_state_dict(bound.state_dict())
    known = third.apply().changes[0].after  # at another size there is nothing to reuse
    norm = cs.operator_norm(model.weight.detach(), cs.Geometry(9))
    assert norm.lower <= known <= norm.upper


def test_a_kernel_that_hardly_moved_is_not_measured_again(monkeypatch):
    model = small()
    bound = SpectralClip(model, 10.0, 1, method="project", example=example())
    calls = []
    upper_bound = scale.upper_bound
    monkeypatch.setattr(
        scale, "upper_bound", lambda *args: calls.append(1) or upper_bound(*args)
    )
    bound.apply()
    assert len(calls) == 5  # one layer is used at two sizes
    bound.apply()
    assert len(calls) == 5
    with torch.no_grad():
        model[0].weight += 1e-4
    unmoved = bound.apply().changes[0]
    assert len(calls) == 5
    assert norms(model)["0"] <= unmoved.after <= 10
    with torch.no_grad():
        model[0].weight *= 100
    change = bound.apply().changes[0]
    assert len(calls) > 5
    assert change.before > 10 >= change.after


@pytest.mark.parametrize(
    ("dtype", "first", "move"),
    [
        (torch.float64, 1.0, 2.0**-54),  # half a unit
        (torch.float32, 1.0, 1e-30),
        (torch.float32, 1e-25, 1e-25),  # whose squares underflow
        (torch.float64, 1e-170, 1e-170),
    ],
)
def test_a_small_move_is_not_lost_in_rounding(dtype, first, move):
    before, after = (
        torch.tensor([[[first, each]]], dtype=dtype) for each in (0.0, move)
    )
    target: Any = SimpleNamespace(geometries=[cs.Geometry(4)], max_norm=10.0)
    known = Known(before, before.sum().item(), _views(target))  # which is the norm
    same = reuse_if_unmoved(known, before.clone(), target)
    assert same.after == known.upper
    norm = sum(map(Fraction, after.flatten().tolist()))
    found = reuse_if_unmoved(known, after, target)
    assert found is None or Fraction(found.after) >= norm


def test_a_precision_that_changed_is_a_move():
    wide = torch.tensor([[[1 - 2.0**-40, 0.0]]], dtype=torch.float64)
    target: Any = SimpleNamespace(geometries=[cs.Geometry(4)], max_norm=10.0)
    known = Known(wide, wide.sum().item(), _views(target))
    found = reuse_if_unmoved(known, wide.float(), target)
    assert found is None or found.after >= 1


@pytest.mark.parametrize("method", ["clip", "project"])
def test_what_a_clip_left_as_it_was_is_brought_to_another_bound(method):
    model = small()
    first = SpectralClip(model, 100.0, 1, example=example())
    first.apply()
    second = SpectralClip(model, 0.1, 1, method=method, example=example())
    second.load_state_dict(first.state_dict())
    changes = second.apply().changes
    assert all(change.after < 0.3 < change.before for change in changes)


def test_a_weight_that_was_replaced_is_bounded_too():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    bound = SpectralClip(model, 0.3, 1, method="scale", example=example())
    bound.attach(optimizer).attach(optimizer)  # the second time says nothing new
    louder = {key: 10 * value for key, value in model.state_dict().items()}
    model.load_state_dict(louder, assign=True)
    bound.step()
    assert bound.steps == 1
    assert max(value for name, value in norms(model).items() if name != "4") <= 0.3
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(ValueError, match="layer '0' must still be a parameter"):
        bound.step()


def test_a_watch_survives_being_asked_too_early():
    model = small()
    bound = SpectralClip(model, 0.3, method="scale")
    with pytest.raises(RuntimeError, match="must have run"):
        bound.apply()
    model(example())
    assert bound.apply().changes
    again = SpectralClip(model, 0.3, 1, method="scale")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    again.attach(optimizer).detach()
    again.attach(optimizer)
    train(model, optimizer, 1)
    assert again.passes == 1


def test_an_example_may_be_keywords_or_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 1, 3)

        def forward(self, a, b):
            return self.conv(a) + b

    a, b = torch.zeros(1, 1, 6), torch.zeros(1)
    model = Two()
    for given in ((a, b), {"a": a, "b": b}, layers(model, a, b=b)):
        assert len(project_(model, 0.1, given).changes) == 1
    with pytest.raises(ValueError, match="must have convolutions or Linear"):
        project_(nn.ReLU(), 1.0)


def test_logs_go_to_any_callable():
    model, told = small(), []
    bound = SpectralClip(
        model, 0.5, 2, example=example(), log=lambda *args: told.append(args)
    )
    train(model, bound_optimizer(model, bound), 2)
    assert ("norm/0", bound.last.changes[0].after, 2) in told
    assert ("norm_before/0", bound.last.changes[0].before, 2) in told
    assert told[-1][0] == "spectral_clip/share_of_time"


def bound_optimizer(model, bound):
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    bound.attach(optimizer)
    return optimizer


def test_logs_go_to_tensorboard(tmp_path):
    needed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model = small()
    with SummaryWriter(tmp_path) as writer:
        bound = SpectralClip(model, 0.5, 1, example=example(), log=writer.add_scalar)
        train(model, bound_optimizer(model, bound), 2)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("norm/0")] == [1, 2]


def test_what_cannot_be_is_said():
    model = small()
    with pytest.raises(ValueError, match="`method` must be one of clip, project"):
        SpectralClip(model, method="trim")
    with pytest.raises(ValueError, match="`every` must be"):
        SpectralClip(model, every=0)
    for bad in (0.0, -1.0, "1", torch.tensor(1.0), {"*": 0.0}):
        with pytest.raises(ValueError, match="`max_norm` must be"):
            SpectralClip(model, bad)
    with pytest.raises(TypeError, match="Patterns of `max_norm` must be strings"):
        SpectralClip(model, {0: 1.0})
    with pytest.raises(ValueError, match="holds none"):
        SpectralClip(model).attach(torch.optim.SGD(small().parameters(), 0.1))
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="Layer '0': `weight` must be finite"):
        clip_(model, 1.0)
    before = copy.deepcopy(model.state_dict())
    bound = SpectralClip(model, 0.1, 3, example=example())
    bound.step()
    with pytest.raises(
        ValueError, match=r"At step 1 no weight was changed\. Layer '0'"
    ):
        bound.apply()
    same = (torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert sum(not each for each in same) == 1  # NaN equals nothing


@pytest.mark.parametrize("kind", ["norm", "values"])
@pytest.mark.parametrize("sizes", [True, False])
def test_a_penalty_is_the_squared_excess_and_has_its_gradient(kind, sizes):
    model = small().double()
    found = layers(model, example().double())
    at = found if sizes else None
    if sizes:
        want = 0.0
        for layer in found[:-1]:
            geometry = layer.geometry
            if kind == "norm":
                matrix = cs.dense_matrix(layer.weight, geometry)
                values, per = torch.linalg.matrix_norm(matrix, 2)[None], 1
            else:
                torus = geometry.torus(layer.weight.shape[-1])
                values = cs.singular_values(layer.weight, torus)
                per = int(np.prod(values.shape[:-2]))
            want += float(torch.relu(values - 0.3).square().sum()) / per
        rel = 1e-2 if kind == "norm" else 1e-6  # an estimate, at first
        assert penalty(model, 0.3, found, kind=kind).item() == pytest.approx(want, rel)
        for _ in range(300 if kind == "norm" else 0):
            penalty(model, 0.3, found)  # which follows the norm
        assert penalty(model, 0.3, found, kind=kind).item() == pytest.approx(want)
        at_once = penalty(model, 0.3, example().double(), kind=kind)
        assert at_once.item() == pytest.approx(want)
    loss = penalty(model, 0.3, at, kind=kind)
    loss.backward()
    weight, step = model[0].weight, 1e-6
    moved = torch.randn_like(weight)
    slope = float((weight.grad * moved).sum())
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * step * moved
            values.append(penalty(model, 0.3, at, kind=kind).item())
            weight -= sign * step * moved
    rel = 1e-4 if sizes else 0.05  # the supremum's derivative is less exact
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=rel)


def test_a_penalty_of_nothing_is_zero_and_knows_its_kinds():
    assert penalty(small(), 100.0).item() == 0
    assert penalty(small(), {"0": 0.1}, example()).item() > 0
    assert penalty(small(), {"4": 0.1}, example(), linear=True).item() > 0
    with pytest.raises(ValueError, match="`kind` must be one of norm, values"):
        penalty(small(), kind="all")


@pytest.mark.parametrize("kind", ["norm", "values"])
def test_a_penalty_on_complex_weights(kind):
    torch.manual_seed(0)
    conv = nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular", dtype=torch.complex64)
    found = layers(conv, torch.zeros(1, 2, 5, dtype=torch.complex64))
    (layer,) = found
    values = torch.linalg.svdvals(
        cs.dense_matrix(layer.weight.detach(), layer.geometry)
    )
    per, values = (1, values[:1]) if kind == "norm" else (5, values)
    want = float(torch.relu(values - 0.3).square().sum()) / per
    assert penalty(conv, 0.3, found, kind=kind).item() == pytest.approx(want, rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_penalty_on_a_weight_that_a_hook_sets_is_refused():
    model = nn.utils.weight_norm(nn.Conv1d(1, 1, 3))
    with pytest.raises(ValueError, match="set by a hook"):
        penalty(model, 0.01)
    model = nn.Sequential(model)
    skipped = clip_(model, 0.01, torch.zeros(1, 1, 8)).skipped
    assert "torch.nn.utils.parametrizations" in skipped["0"]
    assert penalty(nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 1, 3)), 0.01) > 0


def test_a_penalty_keeps_the_norm_down():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    found = layers(model, example())
    for _ in range(60):
        optimizer.zero_grad()
        penalty(model, 0.3, found).backward()
        optimizer.step()
    assert max(itertools.islice(norms(model).values(), 5)) < 0.35


def test_a_clip_measures_norms_only_when_they_are_asked_for(monkeypatch):
    model = small()
    calls, upper_bound = [], scale.upper_bound
    monkeypatch.setattr(
        scale, "upper_bound", lambda *args: calls.append(1) or upper_bound(*args)
    )
    before = norms(model)
    bound = SpectralClip(model, 0.5, example=example())
    change = bound.apply().changes[0]
    with torch.no_grad():
        model[0].weight *= 100  # norms are those of the pass all the same
    assert not calls
    assert before["0"] <= change.before <= 1.02 * before["0"]
    assert len(calls) == 1
    assert 0.5 < change.after < change.before
    assert change.before == change.before
    assert len(calls) == 2
    quiet = SpectralClip(model, 1e6, example=example())
    first, second = quiet.apply().changes[0], quiet.apply().changes[0]
    assert first.before == first.after == second.after


def test_a_first_pass_that_takes_long_says_how_far_it_is(monkeypatch, capsys):
    clock = itertools.count(step=1.5)  # seconds from one look at it to the next
    monkeypatch.setattr("convspectra._training.time.monotonic", lambda: next(clock))
    bound = SpectralClip(small(), 0.5, example=example())
    bound.apply()
    first = capsys.readouterr().err
    assert first.startswith("SpectralClip: the first pass has bounded 2 of ")
    assert first.endswith("layers after 3 s\n")
    bound.apply()
    assert capsys.readouterr().err == ""
