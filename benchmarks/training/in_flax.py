"""The network in Flax, by nnx and optax."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from convspectra.jax import Layers, clip_tree, layers

from . import MAX_NORM, Setup

# As in PyTorch.
UNIFORM = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Trainer:
    """A network with compiled steps of SGD, and a compiled pass.

    A pass is what `spectral_clip` does within a step that one is due in.
    """

    def __init__(self, setup: Setup) -> None:
        images, labels = map(jnp.asarray, setup.data())
        self._model, self._images = ResNet(setup, nnx.Rngs(0)), images
        sgd = optax.sgd(0.1, momentum=0.9)
        self._optimizer = nnx.Optimizer(self._model, sgd, wrt=nnx.Param)
        # New variables: those of the model change with it.
        self._start = jax.tree.map(lambda x: x, nnx.state(self._model))
        found = self.layers()
        self._clip = jax.jit(lambda params: clip_tree(params, found, MAX_NORM))

        @nnx.jit
        def step(model: ResNet, optimizer: Any) -> Any:
            def loss(model: ResNet) -> Any:
                logits = model(images)
                entropy = optax.softmax_cross_entropy_with_integer_labels
                return entropy(logits, labels).mean()

            optimizer.update(model, nnx.grad(loss)(model))

        self._step = step

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(x.size for x in jax.tree.leaves(self._params()))

    def layers(self) -> Layers:
        """The layers of the network."""
        return layers(self._model, self._images[:1])

    def step(self) -> None:
        """Make a step, without a pass."""
        self._step(self._model, self._optimizer)
        jax.block_until_ready(self._params())

    def bound(self) -> None:
        """Make a pass."""
        nnx.update(self._model, jax.block_until_ready(self._clip(self._params())))

    def restore(self) -> None:
        """Take the weights of the beginning."""
        nnx.update(self._model, self._start)

    def _params(self) -> Any:
        return nnx.state(self._model, nnx.Param)


trainer = Trainer


class ResNet(nnx.Module):
    """As that of PyTorch, but for the zeros around strided layers."""

    def __init__(self, setup: Setup, rngs: nnx.Rngs) -> None:
        channels = setup.widths[0]
        self.first, blocks = Convolution(3, channels, 3, 1, rngs), []
        for stage, width in enumerate(setup.widths):
            for block in range(setup.blocks):
                stride = 2 if stage and not block else 1
                blocks.append(Block(channels, width, stride, rngs))
                channels = width
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(channels, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Block(nnx.Module):
    """Two 3x3 layers with a shortcut."""

    def __init__(self, channels: int, out: int, stride: int, rngs: nnx.Rngs) -> None:
        self.first = Convolution(channels, out, 3, stride, rngs)
        self.second = Convolution(out, out, 3, 1, rngs)
        same = channels == out and stride == 1
        shortcut = None if same else Convolution(channels, out, 1, stride, rngs)
        self.shortcut = nnx.data(shortcut)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.second(nnx.relu(self.first(x)))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Convolution(nnx.Module):
    """A layer and its BatchNorm."""

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int, rngs: nnx.Rngs
    ) -> None:
        size, options = (kernel, kernel), {"use_bias": False, "kernel_init": UNIFORM}
        self.layer = nnx.Conv(channels, out, size, stride, **options, rngs=rngs)
        self.norm = nnx.BatchNorm(out, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.layer(x))
