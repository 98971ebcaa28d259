"""Layers of TensorFlow, side by side, for the files that it writes."""


def conv(x, w, tf, strides, padding, dilations=(1, 1)):
    return tf.nn.conv2d(x, w, strides, padding, dilations=dilations)


def depthwise(x, w, tf, stride, padding):
    return tf.nn.depthwise_conv2d(x, w, (1, stride, stride, 1), padding)


def transposed(x, w, tf, out, strides, padding):
    return tf.nn.conv2d_transpose(x, w, (len(x), *out, w.shape[2]), strides, padding)


def volume(x, w, tf, strides, padding):
    return tf.nn.conv3d(x, w, (1, *strides, 1), padding)


def volume_transposed(x, w, tf, out, strides, padding):
    shape, strides = (len(x), *out, w.shape[3]), (1, *strides, 1)
    return tf.nn.conv3d_transpose(x, w, shape, strides, padding)


def blocks(x, w, tf, block, paddings, crops, padding="VALID", dilation=1):
    """A dilated layer as it was written before convolutions had a dilation."""
    cut = tf.space_to_batch(x, block, paddings)
    done = tf.nn.conv2d(cut, w, 1, padding, dilations=dilation)
    return tf.batch_to_space(done, block, crops)


def linear(x, w, tf):
    return tf.matmul(x, w)


# Layers by name: the shapes of the input and of the weight, and what is done to them.
LAYERS = {
    "plain": ((1, 6, 7, 3), (3, 3, 3, 4), conv, ((1, 1), "SAME")),
    "strided": ((1, 7, 6, 2), (3, 2, 2, 5), conv, ((2, 2), "SAME")),
    "valid": ((1, 7, 8, 2), (2, 3, 2, 3), conv, ((2, 1), "VALID")),
    "dilated": ((1, 9, 8, 2), (3, 2, 2, 4), conv, ((1, 1), "VALID", (2, 3))),
    "grouped": ((1, 5, 6, 4), (3, 3, 2, 6), conv, ((1, 1), "SAME")),
    "depthwise": ((1, 6, 5, 3), (3, 2, 3, 2), depthwise, (2, "SAME")),
    "up": ((1, 4, 5, 3), (3, 2, 2, 3), transposed, ((8, 10), (2, 2), "SAME")),
    "up odd": ((1, 4, 5, 3), (3, 3, 2, 3), transposed, ((7, 9), (2, 2), "SAME")),
    "up valid": ((1, 3, 4, 2), (4, 3, 3, 2), transposed, ((8, 9), (2, 2), "VALID")),
    "volume": ((1, 3, 4, 5, 2), (2, 1, 3, 2, 3), volume, ((1, 2, 1), "SAME")),
    "volume up": (
        *((1, 2, 3, 4, 3), (2, 3, 1, 4, 3)),
        *(volume_transposed, ((4, 3, 7), (2, 1, 2), "SAME")),
    ),
    "matrix": ((1, 7), (7, 5), linear, ()),
    "in blocks": (
        *((1, 6, 7, 1), (3, 4, 1, 2)),
        *(blocks, ((2, 2), ((0, 0), (0, 1)), ((0, 0), (0, 1)), "SAME", (2, 1))),
    ),
}


def kernel_shape(shape, make):
    *taps, inputs, out = shape
    if make is depthwise:
        return (inputs * out, 1, *taps)
    return (out, inputs, *taps, 1) if make is linear else (out, inputs, *taps)
