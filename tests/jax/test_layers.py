"""Layers of Flax models, against what Flax itself computes with them."""

import math

import numpy as np
import pytest
from optional import needed

import convspectra as cs

for name in ("jax", "flax", "optax"):
    needed(name)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import linen, nnx  # noqa: E402

from convspectra.jax import clip_tree, layers, penalty, spectral_clip  # noqa: E402

SHAPE = (5, 6, 4)  # sites and channels of the input
# name: (class, arguments); the kernel is 3 x 2 unless it is stated.
CASES = {
    "same": ("Conv", {"strides": 2}),
    "valid": ("Conv", {"padding": "VALID", "kernel_dilation": 2}),
    "circular": ("Conv", {"padding": "CIRCULAR", "feature_group_count": 2}),
    "reflect": ("Conv", {"padding": "REFLECT", "strides": (1, 2)}),
    "pairs": ("Conv", {"padding": ((1, 2), 0)}),
    "up-same": ("ConvTranspose", {"strides": (2, 3)}),
    "up-valid": ("ConvTranspose", {"strides": (2, 3), "padding": "VALID"}),
    "up-pairs": ("ConvTranspose", {"padding": ((1, 2), (0, 1)), "strides": (2, 1)}),
    "up-dilated": ("ConvTranspose", {"kernel_dilation": 2, "padding": "VALID"}),
    "up-transposed": ("ConvTranspose", {"strides": (2, 2), "transpose_kernel": True}),
}


def matrix_of(call, shape=SHAPE):
    """The matrix of a layer, by showing it every basis vector; channels go first."""
    *sites, channels = shape
    basis = np.eye(math.prod(shape), dtype="float32").reshape(-1, channels, *sites)
    basis = np.concatenate([0 * basis[:1], basis])  # with what the bias alone gives
    shown = np.moveaxis(np.asarray(call(np.moveaxis(basis, 1, -1))), -1, 1)
    return (shown[1:] - shown[:1]).reshape(len(basis) - 1, -1).T


@pytest.mark.parametrize("name", CASES)
def test_kernels_and_geometries_make_the_matrices_of_their_layers(name):
    kind, options = CASES[name]
    module = getattr(nnx, kind)(4, 6, (3, 2), **options, rngs=nnx.Rngs(0))
    (found,) = layers(module, jnp.zeros((1, *SHAPE)))
    want = matrix_of(nnx.jit(module))
    got = cs.dense_matrix(np.asarray(found.weight), found.geometry)
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_a_circular_transposed_layer_has_the_values_of_its_matrix():
    options = {"strides": (2, 2), "padding": "CIRCULAR"}
    module = nnx.ConvTranspose(2, 3, (3, 2), **options, rngs=nnx.Rngs(0))
    (found,) = layers(module, jnp.zeros((1, 3, 4, 2)))
    values = np.linalg.svd(matrix_of(nnx.jit(module), (3, 4, 2)), compute_uv=False)
    got = cs.singular_values(np.asarray(found.weight), found.geometry)
    np.testing.assert_allclose(np.sort(got, None)[::-1], values, atol=5e-6)


class Block(linen.Module):
    """Of linen: normalization, dropout, a causal layer, one that is called twice."""

    @linen.compact
    def __call__(self, x, train):
        x = linen.Conv(4, (3,), padding="CAUSAL", strides=2, name="causal")(x)
        x = linen.BatchNorm(use_running_average=not train)(x)
        shared = linen.Conv(4, (3,), name="shared")
        x = linen.Dropout(0.5, deterministic=not train)(shared(x))
        x = shared(x[:, ::2])
        x = linen.DenseGeneral((2, 3), axis=(1, 2), name="general")(x)
        return linen.Dense(3, name="head")(x)


def test_a_linen_model_is_followed_with_its_parameters():
    model, example = Block(), jax.ShapeDtypeStruct((2, 8, 3), jnp.float32)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda x: rng.standard_normal(x.shape).astype("float32"),
        jax.eval_shape(lambda x: model.init(jax.random.key(0), x, False), example),
    )
    found = layers(model, (example, True), variables["params"])
    assert {one.name: one.geometry.grid for one in found} == {
        "causal/kernel": (8,),
        "shared/kernel@4": (4,),
        "shared/kernel@2": (2,),
        "head/kernel": (1,),
    }
    assert "no convolution or dense layer" in found.skipped["general/kernel"]
    causal = linen.Conv(4, (3,), padding="CAUSAL", strides=2)
    params = {"params": variables["params"]["causal"]}
    got = cs.dense_matrix(np.asarray(found[0].weight), found[0].geometry)
    want = matrix_of(lambda x: causal.apply(params, x), (8, 3))
    np.testing.assert_allclose(got, want, atol=1e-5)
    # A tree of all collections will do.
    clipped = jax.eval_shape(lambda tree: clip_tree(tree, found, 0.1), variables)
    assert jax.tree.structure(clipped) == jax.tree.structure(variables)


def test_nothing_is_computed():
    traced = []

    class Net(nnx.Module):
        def __init__(self):
            self.conv = nnx.Conv(2, 2, (3, 3), rngs=nnx.Rngs(0))

        def __call__(self, x):
            traced.append(isinstance(self.conv(x), jax.core.Tracer))

    net = Net()
    found = layers(net, jax.ShapeDtypeStruct((1, 4, 4, 2), jnp.float32))
    assert traced == [True]
    assert type(net.conv) is nnx.Conv
    assert [one.name for one in found] == ["conv/kernel"]


def test_what_is_not_known_is_named_with_the_reason():
    class Net(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            mask = jnp.ones((3, 2, 2))
            self.masked = nnx.Conv(2, 2, 3, mask=mask, rngs=rngs)
            self.spread = nnx.Conv(2, 2, 3, input_dilation=2, padding=1, rngs=rngs)
            self.whole = nnx.Linear(2, 2, rngs=rngs)
            self.whole.kernel[...] = self.whole.kernel[...].astype(jnp.int8)
            self.idle = nnx.Conv(2, 2, 3, rngs=rngs)

        def __call__(self, x):
            return self.whole(self.spread(self.masked(x)))

    found = layers(Net(), jnp.zeros((1, 8, 2)))
    assert found.skipped["masked/kernel"] == "its kernel is masked"
    assert found.skipped["spread/kernel"] == "it dilates its input"
    assert "was called with it" in found.skipped["idle/kernel"]


def test_bad_input_is_refused():
    example = jnp.zeros((1, 4, 2))
    with pytest.raises(TypeError, match=r"flax.nnx or flax.linen, got list"):
        layers([], example)
    with pytest.raises(TypeError, match="must be the parameters of a linen model"):
        layers(linen.Conv(2, (3,)), example)
    module = nnx.Conv(2, 2, 3, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="`params` must be None"):
        layers(module, example, {})
    found, params = layers(module, example), nnx.state(module, nnx.Param)
    for bad in (0, -1.0, float("nan"), {"*": 0}, {"c*": 1.0}):
        with pytest.raises(ValueError, match="max_norm"):
            clip_tree(params, found, bad)
    with pytest.raises(TypeError, match="`layers` must be what"):
        clip_tree(params, [], 1.0)
    nothing = layers(nnx.Dropout(0.5, deterministic=True), (example,))
    with pytest.raises(ValueError, match="must have convolutions or dense layers"):
        penalty({}, nothing)
    with pytest.raises(ValueError, match="they have no 'kernel', only other"):
        spectral_clip(found).init({"other": example})
    with pytest.raises(ValueError, match="must be given the parameters"):
        spectral_clip(found).update(params, spectral_clip(found).init(params))
    with pytest.raises(ValueError, match="`method` must be one of clip, project"):
        spectral_clip(found, method="crop")
    with pytest.raises(ValueError, match="`every` must be at least 1"):
        spectral_clip(found, every=0)
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    for method in (clip_tree, penalty):
        with pytest.raises(ValueError, match="must be finite"):
            method(broken, found, 0.1)
    nnx.update(module, broken)
    with pytest.raises(ValueError, match="Layer 'kernel': `weight` must be finite"):
        layers(module, example)
