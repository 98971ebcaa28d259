"""Sparse weights of TensorFlow Lite models, as its converter writes them."""

import os
import random

import numpy as np
import pytest
from optional import needed

from convspectra._checkpoint.tflite_file import read_tflite
from convspectra._checkpoint.tflite_sparse import Level, Sparsity

pytestmark = pytest.mark.filterwarnings("ignore")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """The file of a layer with few weights, and these."""
    tf, rng = needed("tensorflow"), np.random.default_rng(0)
    weight = rng.standard_normal((1, 1, 16, 32)).astype("f4")
    weight[rng.random(weight.shape) < 0.8] = 0

    def model(x):
        return tf.nn.conv2d(x, tf.constant(weight), 1, "SAME")

    spec = tf.TensorSpec((1, 6, 5, 16), tf.float32)
    function = tf.function(model, input_signature=[spec]).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], None)
    converter.optimizations = [tf.lite.Optimize.EXPERIMENTAL_SPARSITY]
    path = tmp_path_factory.mktemp("sparse") / "net.tflite"
    path.write_bytes(converter.convert())
    return path, weight


def test_a_sparse_weight_is_written_out(pruned):
    path, weight = pruned
    (kernel,) = read_tflite(path).kernels
    assert kernel.not_writable_because == "is sparse"
    assert kernel.stated["grid"] == (6, 5)
    np.testing.assert_array_equal(kernel.load(), weight.transpose(3, 2, 0, 1))


def test_damaged_sparse_weights_are_read_or_refused(pruned, tmp_path):
    data, draw, read = pruned[0].read_bytes(), random.Random(0), 0
    path = tmp_path / "net.tflite"
    for _ in range(400):
        new = bytearray(data)
        for _ in range(draw.randint(1, 8)):
            new[draw.randrange(len(new))] = draw.choice([0, 1, 127, 128, 255])
        path.write_bytes(new)
        try:
            for kernel in read_tflite(path).kernels:
                assert kernel.load().shape == kernel.shape
                read += 1
        except ValueError:
            pass
    assert 50 < read < 400


def in_blocks(segments=(0, 2, 3), indices=(0, 2, 1)):
    """A matrix of 4 x 6 in blocks of 2 x 2, of which three are stored."""
    levels = (
        Level(0, 2),
        Level(1, 0, np.array(segments), np.array(indices)),
        Level(2, 2),
        Level(3, 2),
    )
    return Sparsity((4, 6), levels, (0, 1))


def test_blocks_have_their_places():
    found = in_blocks().write_out(np.arange(1.0, 13))
    want = np.zeros((4, 6))
    want[:2, :2], want[:2, 4:], want[2:, 2:4] = (
        np.arange(first, first + 4.0).reshape(2, 2) for first in (1, 5, 9)
    )
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(
    ("wrong", "count", "message"),
    [
        ({"segments": (0, 3)}, 12, "do not fit each other"),
        ({"segments": (0, 2, 1)}, 12, "do not fit each other"),
        ({"segments": (0, 2, 2**40)}, 12, "do not fit each other"),
        ({"indices": (0, 3, 1)}, 12, "outside of their tensor"),
        ({"indices": (0, -1, 1)}, 12, "outside of their tensor"),
        ({}, 16, "16 numbers have 12 places"),
    ],
)
def test_places_that_do_not_fit_are_refused(wrong, count, message):
    with pytest.raises(ValueError, match=message):
        in_blocks(**wrong).write_out(np.ones(count))
