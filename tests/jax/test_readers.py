"""Which BatchNorms read the output of a layer, and which kernels are not in use."""

import numpy as np
import pytest
from optional import needed

import convspectra as cs

for name in ("jax", "flax", "optax"):
    needed(name)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import linen, nnx  # noqa: E402
from flax_layers import as_matrix, basis, drawn  # noqa: E402

from convspectra.jax import clip_tree, layers  # noqa: E402

SHAPE = (3, 4, 2)
EXAMPLE = jax.ShapeDtypeStruct((1, *SHAPE), jnp.float32)
GAINS = {"a": 10.0, "b": 0.1}


class Net(nnx.Module):
    """A layer, two BatchNorms, and a way in which they are called."""

    def __init__(self, forward):
        rngs = nnx.Rngs(0)
        self.c = nnx.Conv(2, 3, (3, 3), kernel_init=drawn, rngs=rngs)
        for name, gain in GAINS.items():
            norm = nnx.BatchNorm(3, use_running_average=True, rngs=rngs)
            norm.scale[...] = jnp.full(3, gain)
            setattr(self, name, norm)
        self.forward = forward

    def __call__(self, x):
        return self.forward(self, x)


class InLinen(linen.Module):
    """The same."""

    forward: object

    def setup(self):
        self.c = linen.Conv(3, (3, 3), kernel_init=drawn)
        for name, gain in GAINS.items():
            init = linen.initializers.constant(gain)
            setattr(self, name, linen.BatchNorm(True, scale_init=init))

    def __call__(self, x):
        return self.forward(self, x)


def both(net, x):
    y = net.c(x)
    return net.a(y) + net.b(y)


def one_of_two_calls(net, x):
    return net.a(net.c(x)) + net.c(x)


def beside(net, x):
    y = net.c(x)
    return net.b(y) + y


def by_name(net, x):
    return net.b(x=net.c(x))


def returned(net, x):
    y = net.c(x)
    return {"normed": net.b(y), "features": [y]}


def before_a_branch(net, x):
    y = net.c(x)
    return jax.lax.cond(x.sum() > 0, lambda: y, lambda: 0 * y) + net.b(y)


def twice(net, x):
    y = net.c(x)
    return net.b(y) + net.b(y)


def by_its_shape(net, x):
    y = net.c(x)
    assert y.shape == (1, 3, 4, 3)
    return net.b(y)


READ_BY = {
    both: ["+a", "+b"],
    one_of_two_calls: ["+a", ""],
    beside: ["+b", ""],
    by_name: ["+b"],
    returned: ["+b", ""],
    before_a_branch: ["+b", ""],
    twice: ["+b"],
    by_its_shape: ["+b"],
}
FORWARDS = pytest.mark.parametrize("forward", READ_BY, ids=lambda f: f.__name__)


def found_in_linen(forward):
    model = InLinen(forward)
    variables = jax.jit(model.init)(jax.random.key(0), np.zeros((1, *SHAPE), "f4"))
    return layers(model, EXAMPLE, variables, fold_batch_norm=True)


@FORWARDS
@pytest.mark.parametrize("lift", ["plain", "jit", "remat", "linen"])
def test_a_layer_is_listed_with_each_of_its_readers(forward, lift):
    if lift == "linen":
        found = found_in_linen(forward)
    else:
        inner = {"plain": lambda f: f, "jit": nnx.jit, "remat": nnx.remat}[lift]
        found = layers(Net(inner(forward)), EXAMPLE, fold_batch_norm=True)
    assert [one.name for one in found] == [f"c/kernel{end}" for end in READ_BY[forward]]
    net = Net(forward)
    plain = as_matrix(jax.jit(net.c)(basis(SHAPE)))
    for one, end in zip(found, READ_BY[forward]):
        matrix = cs.dense_matrix(np.asarray(one.weight), one.geometry)
        gain = GAINS.get(end[1:], np.sqrt(1 + 1e-5)) / np.sqrt(1 + 1e-5)
        np.testing.assert_allclose(matrix, gain * plain, rtol=1e-5, atol=1e-5)


def test_a_block_that_is_traced_once_and_called_twice_reads_once():
    class Twice(nnx.Module):
        def __init__(self):
            self.net = Net(by_name)

        def __call__(self, x):
            block = nnx.jit(lambda net, x: net(x))
            return block(self.net, x), block(self.net, x)

    found = layers(Twice(), EXAMPLE, fold_batch_norm=True)
    assert [one.name for one in found] == ["net/c/kernel+net/b"]


def test_what_jax_keeps_of_an_earlier_trace_is_not_counted():
    class Kept(linen.Module):
        @linen.jit
        @linen.compact
        def __call__(self, x):
            y = linen.Conv(2, (3, 3), kernel_init=drawn, name="c")(x)
            return linen.BatchNorm(True, name="a")(y) + y

    example = np.zeros((1, *SHAPE), "float32")
    variables = Kept().init(jax.random.key(0), example)
    found = layers(Kept(), EXAMPLE, variables, fold_batch_norm=True)
    assert [one.name for one in found] == ["c/kernel+a", "c/kernel"]
    again = layers(Kept(), EXAMPLE, variables, fold_batch_norm=True)
    assert "c/kernel" in again.skipped  # which JAX does not call once more


def test_sizes_are_named_where_there_are_several():
    def smaller(net, x):
        return both(net, x), net.b(net.c(x[:, ::2]))

    found = layers(Net(smaller), EXAMPLE, fold_batch_norm=True)
    assert [one.name for one in found] == [
        "c/kernel+a@3x4",
        "c/kernel+b@3x4",
        "c/kernel+b@2x4",
    ]


class Wrapped(linen.Module):
    """A layer whose kernel another computes, a BatchNorm, and a plain layer."""

    wrapper: str

    @linen.compact
    def __call__(self, x):
        conv = linen.Conv(2, (3, 3), kernel_init=drawn, name="conv")
        more = {"update_stats": True} if self.wrapper == "SpectralNorm" else {}
        x = getattr(linen, self.wrapper)(conv)(x, **more)
        x = linen.BatchNorm(True, name="norm")(x)
        return linen.Dense(2, kernel_init=drawn, name="head")(x)


class WrappedInNnx(nnx.Module):
    """The same."""

    def __init__(self, wrapper):
        random = {"kernel_init": drawn, "rngs": nnx.Rngs(0)}
        conv, rngs = nnx.Conv(2, 2, (3, 3), **random), nnx.Rngs(0)
        self.conv = getattr(nnx, wrapper)(conv, rngs=rngs)
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.head = nnx.Linear(2, 2, **random)

    def __call__(self, x):
        return self.head(self.norm(self.conv(x)))


@pytest.mark.parametrize("wrapper", ["WeightNorm", "SpectralNorm"])
def test_a_kernel_of_which_a_wrapper_makes_another_is_named(wrapper):
    model = Wrapped(wrapper)
    variables = jax.jit(model.init)(jax.random.key(0), np.zeros((1, *SHAPE), "f4"))
    found = layers(model, EXAMPLE, variables, fold_batch_norm=True)
    why = f"a {wrapper} computes the kernel in use"
    assert [one.name for one in found] == ["head/kernel"]
    assert found.skipped == {"conv/kernel": why}
    with pytest.raises(ValueError, match=rf"'conv\*' matches none .*: {why}"):
        clip_tree(variables, layers(model, EXAMPLE, variables), {"conv*": 1.0})

    with jax.enable_x64(False):  # with it, Flax's WeightNorm itself gives a warning
        found = layers(WrappedInNnx(wrapper), EXAMPLE, fold_batch_norm=True)
    assert [one.name for one in found] == ["head/kernel"]
    assert found.skipped == {"conv/layer_instance/kernel": why}
