"""Tiny images, and a network and recipe that train on them in a moment."""

import pytest
from optional import needed


@pytest.fixture
def tiny_images():
    """Forty images for training and ten for the test, of 8 x 8, that can be learnt."""
    torch = needed("torch")
    from experiments.images import Images

    rng = torch.Generator().manual_seed(3)
    labels = torch.arange(50) % 10
    pixels = torch.randn(50, 3, 8, 8, generator=rng) + labels[:, None, None, None]
    return Images(pixels[:40], labels[:40]), Images(pixels[40:], labels[40:])


@pytest.fixture
def tiny_recipe():
    needed("torch")
    from experiments.clipping import Clipping
    from experiments.training import Recipe

    clipping = Clipping(0.5, 2)  # epochs of 3 steps: the count goes on in the next
    half = (0.5,)
    return Recipe(1, (4, 8), 1, True, 1, 3, 16, 0.1, half, 0.1, clipping, averaged=2)
