"""Which weights of which model are bounded, and together with what?"""

import copy

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import matrix_of  # noqa: E402
from torch import nn  # noqa: E402

from convspectra.torch import (  # noqa: E402
    SpectralClip,
    bounded,
    clip_,
    layers,
    penalty,
    project_,
)

X = torch.zeros(1, 2, 6, 6)


def norm_of(module):
    """What a module does to inputs of this size, by its own forward."""
    module = copy.deepcopy(module).double().eval()
    return np.linalg.norm(matrix_of(module, X.shape[1:]), 2)


def convolution():
    return nn.Conv2d(2, 2, 3, padding=1)


def loud_norm():
    """A convolution before a BatchNorm that multiplies by about five."""
    torch.manual_seed(0)
    model = nn.Sequential(convolution(), nn.BatchNorm2d(2))
    nn.init.constant_(model[1].weight, 5.0)
    return model


def test_what_was_known_without_the_batch_norm_says_nothing_of_both():
    model = loud_norm()
    alone = SpectralClip(model, 0.1, method="scale", example=X)
    alone.apply()
    both = SpectralClip(model, 0.1, method="scale", example=X, fold_batch_norm=True)
    both.load_state_dict(alone.state_dict())
    (change,) = both.apply().changes
    assert change.before > 0.4
    assert norm_of(model) <= change.after <= 0.1


def test_what_is_frozen_is_asked_in_every_pass():
    torch.manual_seed(0)
    model = nn.Sequential(convolution(), nn.ReLU(), convolution())
    model[0].requires_grad_(False)
    bound = SpectralClip(model, 0.1, method="scale", example=X)
    assert [change.name for change in bound.apply().changes] == ["2"]
    assert norm_of(model[0]) > 0.1
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    with torch.no_grad():
        model[2].weight *= 3
    before = model[2].weight.clone()
    done = bound.apply()
    assert [change.name for change in done.changes] == ["0"]
    assert "frozen" in done.skipped["2"]
    assert norm_of(model[0]) <= 0.1
    assert torch.equal(model[2].weight, before)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"At step 0 no weight was changed\. .*frozen"):
        bound.apply()


def test_a_parametrization_that_was_removed_leaves_a_weight_to_bound():
    torch.manual_seed(0)
    model = nn.Sequential(convolution(), convolution())
    nn.utils.parametrizations.weight_norm(model[0])
    bound = SpectralClip(model, 0.1, method="scale", example=X)
    assert "parametrization" in bound.apply().skipped["0"]
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    assert [change.name for change in bound.apply().changes] == ["0", "1"]
    assert norm_of(model[0]) <= 0.1


def test_only_linear_layers_are_bounded_if_asked_for_and_else_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    x = torch.zeros(1, 2)
    for act in (
        lambda: SpectralClip(model, 0.1, example=x),
        lambda: project_(model, 0.1),
        lambda: clip_(model, 0.1, x),
        lambda: bounded(model, 0.1, example=x),
        lambda: penalty(model, 0.1, x),
    ):
        with pytest.raises(ValueError, match=r"only Linear layers.*`linear=True`"):
            act()
    assert not project_(model, {"*": None}, x).changes
    done = project_(model, 0.1, x, linear=True)
    assert max(change.after for change in done.changes) <= 0.1


def test_a_bound_of_numpy_holds_to_the_last_digit():
    model = nn.Conv1d(1, 1, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.7)
    most = np.float32(0.7)  # below 0.7, which it equals in single precision
    (change,) = project_(model, most).changes
    assert abs(model.weight.item()) <= change.after <= float(most)


def test_what_was_known_of_a_kernel_says_nothing_of_one_of_another_shape():
    torch.manual_seed(0)
    model = convolution()
    bound = SpectralClip(model, 0.5, method="scale", sizes="every")
    bound.apply()
    model.weight = nn.Parameter(torch.randn(3, 2, 3, 3))
    (change,) = bound.apply().changes
    assert change.before > 0.5 >= change.after


BY_LAYERS = {
    "penalty": lambda model, found: penalty(model, 0.1, found),
    "clip_": lambda model, found: clip_(model, 0.1, found),
    "project_": lambda model, found: project_(model, 0.1, found),
    "bounded": lambda model, found: bounded(model, 0.1, example=found),
    "SpectralClip": lambda model, found: SpectralClip(model, 0.1, example=found),
}


@pytest.mark.parametrize("name", BY_LAYERS)
def test_the_layers_of_another_model_are_refused(name):
    model = nn.Sequential(convolution(), nn.ReLU(), convolution())
    found = layers(model, X)
    for other in (copy.deepcopy(model), model[0]):
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=r"layer '\d' belongs to another one"):
            BY_LAYERS[name](other, found)
        same = (torch.equal(model.state_dict()[key], before[key]) for key in before)
        assert all(same)


WRAPPERS = {
    "parallel": nn.DataParallel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "part": nn.Sequential,
}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_the_layers_of_a_wrapped_model_are_its_own(wrap):
    model = nn.Sequential(convolution(), nn.ReLU(), convolution())
    wrapped = WRAPPERS[wrap](model)
    for name in ("penalty", "SpectralClip"):
        BY_LAYERS[name](wrapped, layers(model, X))
        BY_LAYERS[name](model, layers(wrapped, X))


@pytest.mark.parametrize("name", ["penalty", "bounded"])
def test_what_bounds_kernels_alone_refuses_a_batch_norm(name):
    model = loud_norm()
    found = layers(model, X, fold_batch_norm=True)
    with pytest.raises(ValueError, match=r"must be without `fold_batch_norm`.*'0'"):
        BY_LAYERS[name](model, found)
    assert not nn.utils.parametrize.is_parametrized(model[0])


def test_a_batch_norm_is_folded_or_that_is_refused():
    model = loud_norm()
    with pytest.raises(ValueError, match="needs an `example` of the model's input"):
        SpectralClip(model, 0.1, sizes="every", fold_batch_norm=True)
    with pytest.raises(ValueError, match="must have layers with a BatchNorm"):
        SpectralClip(model, 0.1, example=layers(model, X), fold_batch_norm=True)


@pytest.mark.parametrize("way", ["project_", "fold_batch_norm", "layers", "every"])
def test_both_are_bounded_however_that_is_said(way):
    model = loud_norm()
    found = layers(model, X, fold_batch_norm=True)
    how = {"method": "scale", "example": found, "fold_batch_norm": way != "layers"}
    if way == "project_":
        project_(model, 0.1, found)
    else:
        sizes = "every" if way == "every" else "seen"
        bound = SpectralClip(model, 0.1, sizes=sizes, **how)
        model.eval()(X)  # at a size that is known: there is no warning
        assert len(bound.apply().changes) == 1
        bound.detach()
    assert norm_of(model) <= 0.1
    assert norm_of(model) > (0.0999 if way != "every" else 0.05)
