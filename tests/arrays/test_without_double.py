"""A device without double precision, such as Apple's: emulated on the CPU."""

import numpy as np
import pytest
from optional import needed

import convspectra as cs

torch = needed("torch")
from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from convspectra.torch import SpectralClip  # noqa: E402

DEVICE = torch.device("mps")
MOVES = (torch.Tensor.cpu, torch.Tensor.numpy)


class OnDevice(torch.Tensor):
    """A tensor that claims to be on the device."""


class Device(TorchFunctionMode):
    """What is computed from its tensors, or made on the device, is on it as well."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        ours = any(isinstance(x, OnDevice) for x in args)
        if func == torch.Tensor.device.__get__ and ours:
            return DEVICE
        ours = ours or DEVICE in (*args[1:2], kwargs.get("device"))
        plain = [on_cpu(x) for x in args]
        kwargs = {name: on_cpu(x) for name, x in kwargs.items()}
        assert not (func is torch.Tensor.numpy and ours), "a device has no NumPy array"
        found = func(*plain, **kwargs)
        if not ours or func in MOVES or not isinstance(found, torch.Tensor):
            return found
        if found.dtype in (torch.float64, torch.complex128):
            raise TypeError("This device has no float64.")
        return found.as_subclass(OnDevice)


def is_ours(x):
    return isinstance(x, OnDevice)


def on_cpu(x):
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return x.as_subclass(torch.Tensor) if is_ours(x) else x


@pytest.fixture
def weight():
    torch.manual_seed(0)
    with Device():
        yield torch.randn(3, 2, 3, 3).as_subclass(OnDevice)


@pytest.mark.parametrize("boundary", ["circular", "zeros"])
def test_what_needs_double_precision_is_done_on_the_cpu(weight, boundary):
    geometry = cs.Geometry((6, 6), padding=1, boundary=boundary)
    plain = np.asarray(weight.cpu())
    norm, want = (cs.operator_norm(w, geometry, 1e-7) for w in (weight, plain))
    assert weight.device == norm.upper.device == DEVICE
    assert norm.upper.dtype == torch.float32
    assert float(norm.lower) <= want.upper
    assert want.lower <= float(norm.upper) == pytest.approx(want.upper)
    np.testing.assert_allclose(
        cs.singular_values(weight, geometry).cpu(),
        cs.singular_values(plain, geometry),
        atol=1e-5,
    )
    for move in (cs.clip, cs.scale_to, lambda *args: cs.project(*args).weight):
        found = move(weight, geometry, 1.0)
        assert is_ours(found)
        np.testing.assert_array_equal(found.cpu(), move(plain, geometry, 1.0))


@pytest.mark.parametrize("method", ["clip", "scale", "project"])
@pytest.mark.parametrize("folds", [False, True])
def test_layers_are_bounded_while_they_train(folds, method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3))
    with Device():
        for part in model:
            for name, x in part._parameters.items():
                part._parameters[name] = nn.Parameter(x.data.as_subclass(OnDevice))
            for name, x in part._buffers.items():
                part._buffers[name] = x.as_subclass(OnDevice)
        x = torch.zeros(1, 2, 6, 6).as_subclass(OnDevice)
        bound = SpectralClip(
            model, 0.3, method=method, example=x, fold_batch_norm=folds
        )
        (change,) = bound.apply().changes
        assert is_ours(model[0].weight)
        assert model[0].weight.device == DEVICE
        kernel = np.asarray(model[0].weight.detach().cpu())
    if folds:
        kernel = kernel / np.sqrt(1 + model[1].eps)
    geometry = cs.Geometry((6, 6), padding=1, boundary="zeros")
    norm = cs.operator_norm(kernel.astype(float), geometry)
    assert 0.29 < norm.lower <= change.after * (1 + 1e-6)
    assert norm.upper <= (0.45 if method == "clip" else 0.3 * (1 + 1e-4))
