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
