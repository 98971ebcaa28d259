"""How a network is shown images: in random batches to train, in order for the test."""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim.swa_utils import update_bn

from .images import Images

EVALUATED = 500  # images at once


def batches(
    images: Images, size: int, shift: int, rng: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every image once, in random order, shifted and perhaps mirrored."""
    count, side = len(images.labels), images.pixels.shape[-1]
    order = torch.randperm(count, generator=rng)
    corners = torch.randint(2 * shift + 1, (2, count), generator=rng)
    mirrored = torch.rand(count, generator=rng) < 0.5
    device = images.pixels.device
    wide = pad(images.pixels, (shift,) * 4)
    windows = wide.unfold(2, side, 1).unfold(3, side, 1)  # (n, 3, corners, corners, ..)
    for chosen in order.split(size):
        down, right = corners[:, chosen].to(device)
        flip, chosen = mirrored[chosen].to(device), chosen.to(device)
        x = windows[chosen, :, down, right]  # (size, 3, side, side)
        x = torch.where(flip[:, None, None, None], x.flip(3), x)
        yield x, images.labels[chosen]


@torch.no_grad()
def error_of(network: nn.Module, images: Images) -> float:
    """The share of images of which the network says the wrong class."""
    network.eval()
    parts = [network(part).argmax(1) for part in images.pixels.split(EVALUATED)]
    return (torch.cat(parts) != images.labels).double().mean().item()


def error_with_fresh_statistics(
    network: nn.Module, train: Images, test: Images
) -> float:
    """The error on `test`, with BatchNorm's statistics averaged anew over `train`.

    The running ones lag behind the weights, most of all just after a clip. The network
    itself is left as it is.
    """
    fresh = deepcopy(network)
    update_bn(train.pixels.split(EVALUATED), fresh)
    return error_of(fresh, test)
