"""Which weights of which model are bounded, and together with what?"""

import copy

import numpy as np
import pytest
from optional import needed

torch = needed("torch")

from networks import matrix_of  # noqa: E402
from torch import nn  # noqa: E402

from convspectra.torch import SpectralClip  # noqa: E402

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
