"""One small network, trained with bounded norms in each framework.

The norms in the end are judged by the framework's own forward pass on a basis. All
begin with the same kernels and see the same images, so that they end with the same.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from optional import needed

import convspectra as cs

BOUND, EVERY, STEPS, RATE = 0.6, 2, 4, 0.05
SIDE, CHANNELS, WIDTH = 7, 3, 4
# Of 7 sites, a stride of 2 leaves 4 with one zero on either side, in all frameworks.
SHAPES = {"first": (SIDE, SIDE, CHANNELS), "second": (SIDE, SIDE, WIDTH)}
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((STEPS, 4, *SHAPES["first"])).astype("float32")
KERNELS = {  # (kernel, kernel, in, out)
    name: RNG.normal(0, 0.3, (3, 3, shape[-1], WIDTH)).astype("float32")
    for name, shape in SHAPES.items()
}
TARGET = 3.0  # of all outputs, which makes norms grow


@dataclass(frozen=True)
class Trained:
    """What each layer makes of a basis (the unit, then sites and channels), and how
    its norm was reported."""

    shown: dict[str, np.ndarray]
    report: cs.Report


def basis(name):
    """Every unit input of a layer, channels last."""
    shape = SHAPES[name]
    return np.eye(np.prod(shape), dtype="float32").reshape(-1, *shape)


def in_torch():
    torch = needed("torch")
    from convspectra.torch import SpectralClip, layers

    model = torch.nn.Sequential()
    for name, (stride, width) in {"first": (1, CHANNELS), "second": (2, WIDTH)}.items():
        conv = torch.nn.Conv2d(width, WIDTH, 3, stride, 1, bias=False)
        conv.weight.data = torch.from_numpy(KERNELS[name].transpose(3, 2, 0, 1).copy())
        model.add_module(name, conv)
        model.add_module(f"{name}_relu", torch.nn.ReLU())
    example = torch.zeros(1, CHANNELS, SIDE, SIDE)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    bound = SpectralClip(model, BOUND, EVERY, method="project", example=example)
    for x in torch.from_numpy(IMAGES).movedim(-1, 2):
        optimizer.zero_grad()
        ((model(x).mean((2, 3)) - TARGET) ** 2).mean().backward()
        optimizer.step()
        bound.step()
    with torch.no_grad():
        shown = {
            name: getattr(model, name)(torch.from_numpy(basis(name)).movedim(-1, 1))
            .movedim(1, -1)
            .numpy()
            for name in SHAPES
        }
    return Trained(shown, cs.spectra(layers(model, example)))


def in_keras():
    keras = needed("keras")
    from convspectra.keras import SpectralClip, layers

    model = keras.Sequential([keras.Input(SHAPES["first"])])
    for name, stride in {"first": 1, "second": 2}.items():
        model.add(
            keras.layers.Conv2D(
                WIDTH, 3, stride, "same", name=name, use_bias=False,
                kernel_initializer="zeros",
            )
        )  # fmt: skip
        model.get_layer(name).kernel.assign(KERNELS[name])
        model.add(keras.layers.ReLU())
    model.add(keras.layers.GlobalAveragePooling2D())
    model.compile(keras.optimizers.SGD(RATE), "mse")
    bound = SpectralClip(BOUND, EVERY, method="project")
    x = IMAGES.reshape(-1, *SHAPES["first"])
    y = np.full((len(x), WIDTH), TARGET, "float32")
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[bound])
    shown = {name: np.asarray(model.get_layer(name)(basis(name))) for name in SHAPES}
    return Trained(shown, cs.spectra(layers(model)))


def in_nnx():
    needed("flax")
    import optax
    from flax import nnx

    from convspectra.jax import layers, spectral_clip

    class Net(nnx.Module):
        def __init__(self):
            options = {"use_bias": False, "rngs": nnx.Rngs(0)}
            for name, stride in {"first": 1, "second": 2}.items():
                conv = nnx.Conv(
                    SHAPES[name][-1], WIDTH, (3, 3), stride, **options,
                    kernel_init=lambda *_, name=name, **__: KERNELS[name],
                )  # fmt: skip
                setattr(self, name, conv)

        def __call__(self, x):
            return nnx.relu(self.second(nnx.relu(self.first(x)))).mean((1, 2))

    model = Net()
    bound = spectral_clip(layers(model, IMAGES[0]), BOUND, EVERY, method="project")
    chain = optax.chain(optax.sgd(RATE), bound)
    optimizer = nnx.Optimizer(model, chain, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        loss = lambda model: ((model(x) - TARGET) ** 2).mean()  # noqa: E731
        optimizer.update(model, nnx.grad(loss)(model))

    for x in IMAGES:
        step(model, optimizer, x)
    shown = {name: np.asarray(getattr(model, name)(basis(name))) for name in SHAPES}
    return Trained(shown, cs.spectra(layers(model, IMAGES[0])))


def in_linen():
    needed("flax")
    import jax
    import optax
    from flax import linen

    from convspectra.jax import layers, spectral_clip

    def conv(name):
        stride = {"first": 1, "second": 2}[name]
        return linen.Conv(WIDTH, (3, 3), stride, use_bias=False, name=name)

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            for name in SHAPES:
                x = linen.relu(conv(name)(x))
            return x.mean((1, 2))

    model, params = Net(), {name: {"kernel": k} for name, k in KERNELS.items()}
    found = layers(model, IMAGES[0], params)
    bound = spectral_clip(found, BOUND, EVERY, method="project")
    chain = optax.chain(optax.sgd(RATE), bound)

    @jax.jit
    def step(params, state, x):
        def loss(params):
            return ((model.apply({"params": params}, x) - TARGET) ** 2).mean()

        updates, state = chain.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = chain.init(params)
    for x in IMAGES:
        params, state = step(params, state, x)
    shown = {
        name: np.asarray(conv(name).apply({"params": params[name]}, basis(name)))
        for name in SHAPES
    }
    return Trained(shown, cs.spectra(layers(model, IMAGES[0], params)))


FRAMEWORKS = {
    "torch": in_torch,
    "keras": in_keras,
    "nnx": in_nnx,
    "linen": in_linen,
}


@pytest.fixture(scope="module")
def want():
    """The outcome in PyTorch."""
    return in_torch()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_ends_within_the_bound(framework, want):
    found = want if framework == "torch" else FRAMEWORKS[framework]()
    for (name, shown), layer in zip(found.shown.items(), found.report.layers):
        norm = np.linalg.norm(shown.reshape(len(shown), -1).astype("float64"), 2)
        assert 0.9 * BOUND < norm <= BOUND * (1 + 1e-6), name
        assert layer.name.startswith(name)
        assert layer.norm.lower <= norm * (1 + 1e-6)
        assert norm * (1 - 1e-6) <= layer.norm.upper <= BOUND * 1.001
        np.testing.assert_allclose(shown, want.shown[name], atol=1e-4)
