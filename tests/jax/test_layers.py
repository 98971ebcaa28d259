"""Layers of Flax models, against what Flax itself computes with them."""

from functools import partial

import numpy as np
import pytest
from optional import needed

import convspectra as cs

for name in ("jax", "flax", "optax"):
    needed(name)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import linen, nnx  # noqa: E402
from flax_layers import CASES, KERNELS, as_matrix, basis, drawn, module_of  # noqa: E402

from convspectra.jax import (  # noqa: E402
    clip_tree,
    layers,
    penalty,
    project_tree,
    spectral_clip,
)

RANDOM = {"kernel_init": drawn, "rngs": nnx.Rngs(0)}  # nothing to compile


def in_linen(name):
    """The layer of a named case, and its parameters, which are those of nnx."""
    kind, shape, options = CASES[name]
    kernel = KERNELS[len(shape) - 1]
    module = module_of(name)
    params = {"kernel": module.kernel[...], "bias": module.bias[...]}
    return getattr(linen, kind)(8, kernel, **options), params


@pytest.fixture(scope="module")
def matrices():
    """The matrix of each case, in nnx and in linen; compiled as one function."""
    modules = {name: module_of(name) for name in CASES}
    plain = {name: in_linen(name) for name in CASES}

    @jax.jit
    def shown():
        ours = {name: modules[name](basis(CASES[name][1])) for name in CASES}
        theirs = {
            name: module.apply({"params": params}, basis(CASES[name][1]))
            for name, (module, params) in plain.items()
        }
        return ours, theirs

    return jax.tree.map(as_matrix, shown())


def zeros_like(shape):
    return np.zeros(shape.shape, shape.dtype)


def matrix_of(layer):
    """The matrix that is stated of a layer."""
    return cs.dense_matrix(np.asarray(layer.weight), layer.geometry)


@pytest.mark.parametrize("name", CASES)
def test_kernels_and_geometries_make_the_matrices_of_their_layers(name, matrices):
    example = jax.ShapeDtypeStruct((1, *CASES[name][1]), jnp.float32)
    module, params = in_linen(name)
    found = layers(module_of(name), example), layers(module, example, params)
    for (one,), each in zip(found, matrices):
        np.testing.assert_allclose(matrix_of(one), each[name], atol=2e-6)


def test_a_circular_transposed_layer_has_the_values_of_its_matrix():
    options = {"strides": (2, 2), "padding": "CIRCULAR", "kernel_dilation": (1, 2)}
    module = nnx.ConvTranspose(2, 3, (3, 2), **options, **RANDOM)
    (found,) = layers(module, jnp.zeros((1, 3, 4, 2)))
    shown = nnx.jit(module)(basis((3, 4, 2)))
    values = np.linalg.svd(as_matrix(shown), compute_uv=False)
    got = cs.singular_values(np.asarray(found.weight), found.geometry)
    np.testing.assert_allclose(np.sort(got, None)[::-1], values, atol=5e-6)


class Block(linen.Module):
    """Of linen: normalization, dropout, a causal layer, one that is called twice."""

    @linen.compact
    def __call__(self, x, train):
        x = linen.Conv(4, (3,), padding="CAUSAL", strides=2, name="causal")(x)
        x = linen.BatchNorm(use_running_average=not train, name="norm")(x)
        shared = linen.Conv(4, (3,), name="shared")
        x = linen.Dropout(0.5, deterministic=not train)(shared(x))
        x = shared(x[:, ::2])
        x = linen.DenseGeneral((2, 3), axis=(1, 2), name="general")(x)
        return linen.Dense(3, name="head")(x)


def test_a_linen_model_is_followed_with_its_parameters():
    model, example = Block(), jax.ShapeDtypeStruct((2, 8, 3), jnp.float32)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda x: rng.uniform(0.5, 2, x.shape).astype("float32"),
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
    # A tree of all collections will do.
    clipped = jax.eval_shape(lambda tree: clip_tree(tree, found, 0.1), variables)
    assert jax.tree.structure(clipped) == jax.tree.structure(variables)

    folded = layers(model, (example, True), variables, fold_batch_norm=True)
    assert folded[0].name == "causal/kernel+norm"
    norm, params = variables["batch_stats"]["norm"], variables["params"]["norm"]
    gains = params["scale"] / np.sqrt(norm["var"] + 1e-5)
    want = gains[:, None, None] * found[0].weight
    np.testing.assert_allclose(folded[0].weight, want, rtol=1e-6)
    with pytest.raises(ValueError, match="must have the statistics of 'norm' to fold"):
        layers(model, (example, True), variables["params"], fold_batch_norm=True)


class Normed(nnx.Module):
    """BatchNorms after layers of each kind, and one that a ReLU comes before."""

    def __init__(self):
        self.a = nnx.Conv(4, 6, (3, 2), feature_group_count=2, **RANDOM)
        self.b = nnx.ConvTranspose(6, 4, (2, 2), strides=(2, 2), **RANDOM)
        self.c = nnx.Conv(4, 4, (1, 1), **RANDOM)
        self.d = nnx.Linear(4, 3, **RANDOM)
        for name, width in {"a": 6, "b": 4, "c": 4, "d": 3}.items():
            norm = nnx.BatchNorm(width, use_scale=name != "b", rngs=nnx.Rngs(0))
            norm.var[...] = jnp.asarray(1 + np.arange(width, dtype="float32"))
            setattr(self, f"norm_{name}", norm)

    def __call__(self, x):
        x = self.norm_b(self.b(self.norm_a(self.a(x))))
        x = self.norm_c(nnx.relu(self.c(x)))
        return self.norm_d(self.d(x))


def test_a_batch_norm_is_folded_with_its_running_statistics():
    model = Normed()
    model.norm_a.scale[...] = jnp.asarray(np.linspace(-1, 2, 6, dtype="float32"))
    found = layers(model, jnp.zeros((1, 4, 3, 4), "float32"), fold_batch_norm=True)
    a, b, _, d = found
    assert [one.name for one in found] == [
        "a/kernel+norm_a",
        "b/kernel+norm_b",
        "c/kernel",
        "d/kernel+norm_d",
    ]
    assert type(model.norm_a) is nnx.BatchNorm
    model.eval()
    shapes = {"a": (4, 3, 4), "b": (4, 3, 6), "d": (4,)}

    @jax.jit
    def shown():
        return {
            name: getattr(model, f"norm_{name}")(getattr(model, name)(basis(shape)))
            for name, shape in shapes.items()
        }

    for one, each in zip((a, b, d), shown().values()):
        np.testing.assert_allclose(matrix_of(one), as_matrix(each), atol=1e-5)
    with pytest.raises(ValueError, match="must be without `fold_batch_norm`"):
        clip_tree(nnx.state(model, nnx.Param), found, 1.0)


def test_nothing_is_computed():
    traced = []

    class Net(nnx.Module):
        def __init__(self):
            self.conv = nnx.Conv(2, 2, (3, 3), **RANDOM)

        def __call__(self, x):
            traced.append(isinstance(self.conv(inputs=x), jax.core.Tracer))

    net = Net()
    found = layers(net, jax.ShapeDtypeStruct((1, 4, 4, 2), jnp.float32))
    assert traced == [True]
    assert type(net.conv) is nnx.Conv
    assert [one.name for one in found] == ["conv/kernel"]


def test_arguments_may_be_passed_by_name_and_in_containers():
    class Net(nnx.Module):
        def __init__(self):
            self.conv = nnx.Conv(2, 2, (3, 3), **RANDOM)

        def __call__(self, x, factor, *, train, mask=None):
            assert (train, factor) == (False, 2)
            assert all(isinstance(each, jax.core.Tracer) for each in (x["x"], mask))
            return factor * self.conv(x["x"]) * mask

    class InLinen(linen.Module):
        @linen.compact
        def __call__(self, x, factor, *, train, mask=None):
            assert (train, factor) == (False, 2)
            return factor * linen.Conv(2, (3, 3), name="conv")(x["x"]) * mask

    shape = jax.ShapeDtypeStruct((1, 4, 5, 2), jnp.float32)
    options = {"train": False, "mask": shape}
    model, params = InLinen(), {"conv": {"kernel": np.zeros((3, 3, 2, 2), "float32")}}
    for found in (
        layers(partial(Net(), **options), ({"x": shape}, 2)),
        layers(partial(model, **options), ({"x": shape}, 2), params),
    ):
        assert [one.name for one in found] == ["conv/kernel"]
        assert found[0].geometry.grid == (4, 5)


def test_an_attribute_may_be_called_params():
    class Net(nnx.Module):
        def __init__(self):
            self.params = nnx.Dict(conv=nnx.Conv(2, 2, (3, 3), **RANDOM))

        def __call__(self, x):
            return self.params.conv(x)

    net = Net()
    found = layers(net, jnp.zeros((1, 4, 4, 2)))
    assert [one.name for one in found] == ["params/conv/kernel"]
    inside = project_tree(nnx.to_pure_dict(nnx.state(net, nnx.Param)), found, 0.1)
    nnx.update(net, inside)
    shown = as_matrix(jax.jit(net)(basis((4, 4, 2))))
    assert 0.09 < np.linalg.norm(shown, 2) <= 0.1 * (1 + 1e-6)


def test_what_is_not_known_is_named_with_the_reason():
    class Net(nnx.Module):
        def __init__(self):
            self.masked = nnx.Conv(2, 2, 3, mask=jnp.ones((3, 2, 2)), **RANDOM)
            self.spread = nnx.Conv(
                2, 2, 3, input_dilation=2, strides=2, padding=1, **RANDOM
            )
            own = partial(jax.lax.conv_general_dilated)
            self.own = nnx.Conv(2, 2, 3, conv_general_dilated=own, **RANDOM)
            self.whole = nnx.Linear(2, 2, param_dtype=jnp.int8, **RANDOM)
            self.idle = nnx.Conv(2, 2, 3, **RANDOM)

        def __call__(self, x):
            return self.whole(self.own(self.spread(self.masked(x))))

    net = Net()
    found = layers(net, jnp.zeros((1, 8, 2)))
    assert len(found) == 0
    assert found.skipped == {
        "masked/kernel": "its kernel is masked",
        "spread/kernel": "it dilates its input, and has strides or groups",
        "own/kernel": "it convolves by a function of its own",
        "whole/kernel": "its numbers are int8, which stand for others",
        "idle/kernel": "no convolution or dense layer of Flax was called with it",
    }
    params = nnx.state(net, nnx.Param)
    with pytest.raises(ValueError, match=r"it has none\. .* its numbers are int8"):
        clip_tree(params, found, 1.0, linear=True)


def test_kernels_that_share_an_array_are_named_and_the_others_listed():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            options = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
            many = linen.vmap(lambda module, x: module(x), in_axes=0, **options)
            x = many(linen.Dense(3, name="dense"), x)
            x = many(linen.Conv(3, (2,), name="conv"), x)
            return linen.Dense(2, name="head")(x)

    example = jax.ShapeDtypeStruct((4, 1, 5, 2), jnp.float32)
    params = jax.eval_shape(Net().init, jax.random.key(0), example)["params"]
    found = layers(Net(), example, jax.tree.map(zeros_like, params))
    assert [one.name for one in found] == ["head/kernel"]
    why = "its kernel is one of several in an array"
    assert found.skipped == {"dense/kernel": why, "conv/kernel": why}

    class Many(nnx.Module):
        def __init__(self):
            self.dense = nnx.vmap(lambda rngs: nnx.Linear(2, 3, rngs=rngs))(
                nnx.Rngs(0).split(4)
            )

        def __call__(self, x):
            return nnx.vmap(lambda module, x: module(x))(self.dense, x)

    found = layers(Many(), jax.ShapeDtypeStruct((4, 1, 2), jnp.float32))
    assert (found.found, found.skipped) == ((), {"dense/kernel": why})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_precisions_stay_what_they_are(dtype):
    module = nnx.Conv(2, 2, 3, param_dtype=dtype, **RANDOM)
    found = layers(module, jnp.zeros((1, 6, 2), dtype))
    params = nnx.state(module, nnx.Param)
    clipped = jax.eval_shape(lambda p: clip_tree(p, found, 0.3), params)
    inside = project_tree(params, found, 0.3)
    assert {x.dtype for x in jax.tree.leaves((clipped, inside))} == {jnp.dtype(dtype)}
    nnx.update(module, inside)
    (one,) = layers(module, jnp.zeros((1, 6, 2), dtype))
    assert 0.2 < np.linalg.norm(matrix_of(one).astype("float64"), 2) <= 0.3


def test_bad_input_is_refused():
    example = jnp.zeros((1, 4, 2))
    with pytest.raises(TypeError, match=r"flax.nnx or flax.linen, got list"):
        layers([], example)
    with pytest.raises(TypeError, match="must be the parameters of a linen model"):
        layers(linen.Conv(2, (3,)), example)
    module = nnx.Conv(2, 2, 3, **RANDOM)
    with pytest.raises(TypeError, match="`params` must be None"):
        layers(module, example, {})
    with pytest.raises(TypeError, match=r"must be arrays, got .* Initialize it"):
        layers(nnx.eval_shape(lambda: nnx.Conv(2, 2, 3, rngs=nnx.Rngs(0))), example)
    found, params = layers(module, example), nnx.state(module, nnx.Param)
    for bad in (0, -1.0, float("nan"), "much", {"*": 0}, {"c*": 1.0}):
        for refuse in (clip_tree, project_tree, penalty):
            with pytest.raises(ValueError, match="max_norm"):
                refuse(params, found, bad)
        with pytest.raises(ValueError, match="max_norm"):
            spectral_clip(found, bad)
    with pytest.raises(TypeError, match="`layers` must be what"):
        clip_tree(params, [], 1.0)
    nothing = layers(nnx.Dropout(0.5, deterministic=True), (example,))
    for refuse in (clip_tree, project_tree, penalty):
        with pytest.raises(ValueError, match="must have convolutions or dense layers"):
            refuse({}, nothing, 1.0)
    foreign, bound = {"other": example}, spectral_clip(found)
    for refuse in (
        lambda: bound.init(foreign),
        lambda: bound.update(params, bound.init(params), foreign),
        *(partial(each, foreign, found) for each in (clip_tree, project_tree, penalty)),
    ):
        with pytest.raises(ValueError, match="they have no 'kernel', only other"):
            refuse()
    with pytest.raises(ValueError, match="must be given the parameters"):
        spectral_clip(found).update(params, spectral_clip(found).init(params))
    with pytest.raises(ValueError, match="`method` must be one of clip, project"):
        spectral_clip(found, method="crop")
    with pytest.raises(ValueError, match="`every` must be at least 1"):
        spectral_clip(found, every=0)
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    for refuse in (clip_tree, project_tree, penalty):
        with pytest.raises(ValueError, match="must be finite"):
            refuse(broken, found, 0.1)
    nnx.update(module, broken)
    with pytest.raises(ValueError, match="Layer 'kernel': `weight` must be finite"):
        layers(module, example)
