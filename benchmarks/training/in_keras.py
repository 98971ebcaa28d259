"""The network in Keras, on the backend that it is set to."""

import math
from typing import Any

import keras

from convspectra.keras import Layers, SpectralClip, layers

from . import MAX_NORM, Setup


class Trainer:
    """A compiled network with SGD, and a SpectralClip."""

    def __init__(self, setup: Setup) -> None:
        keras.utils.set_random_seed(0)
        self._model = resnet(setup)
        self._images, self._labels = setup.data()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
        self._bound = SpectralClip(MAX_NORM)
        self._bound.set_model(self._model)
        self._start = self._model.get_weights()

    @property
    def parameters(self) -> int:
        """The number of parameters that are trained."""
        return sum(math.prod(w.shape) for w in self._model.trainable_weights)

    def layers(self) -> Layers:
        """The layers of the network."""
        return layers(self._model)

    def step(self) -> None:
        """Make a step, without a pass."""
        self._model.train_on_batch(self._images, self._labels)

    def bound(self) -> None:
        """Make a pass."""
        self._bound.apply()

    def restore(self) -> None:
        """Take the weights of the beginning."""
        self._model.set_weights(self._start)


trainer = Trainer


def resnet(setup: Setup) -> keras.Model:
    """As that of PyTorch, but for the zeros around strided layers."""
    start = keras.Input((setup.side, setup.side, 3))
    x = keras.layers.ReLU()(_convolution(start, setup.widths[0], 3, 1))
    for stage, width in enumerate(setup.widths):
        for block in range(setup.blocks):
            x = _block(x, width, 2 if stage and not block else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(start, keras.layers.Dense(10)(x))


def _block(x: Any, out: int, stride: int) -> Any:
    y = keras.layers.ReLU()(_convolution(x, out, 3, stride))
    y = _convolution(y, out, 3, 1)
    same = x.shape[-1] == out and stride == 1
    shortcut = x if same else _convolution(x, out, 1, stride)
    return keras.layers.ReLU()(keras.layers.Add()([y, shortcut]))


def _convolution(x: Any, out: int, kernel: int, stride: int) -> Any:
    uniform = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
    options = {"use_bias": False, "kernel_initializer": uniform}  # as in PyTorch
    layer = keras.layers.Conv2D(out, kernel, stride, "same", **options)
    return keras.layers.BatchNormalization()(layer(x))
