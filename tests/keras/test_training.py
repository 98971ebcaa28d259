"""Norms that stay bounded while Keras trains, seen by Keras's own forward pass."""

import dataclasses

import numpy as np
import pytest
from keras_layers import drawn, matrices_of, to_numpy
from optional import needed

import convspectra as cs

needed("keras")
from convspectra.keras import (  # noqa: E402
    SpectralClip,
    bounded,
    clip_,
    layers,
    penalty,
    project_,
)

BOUND = 0.7
SHAPE = (6, 7, 3)  # of the images
SLACK = 1 + 1e-5  # for the forward pass in single precision

# name: (class, arguments, what the constraint is told)
KINDS = {
    "conv": ("Conv2D", {"dilation_rate": 2, "padding": "same"}, {}),
    "strided": (
        "Conv2D",
        {"strides": 2, "groups": 3, "padding": "same"},
        {"stride": 2, "groups": 3},
    ),
    "up": ("Conv2DTranspose", {"strides": (1, 2)}, {"stride": (1, 2)}),
    "depthwise": ("DepthwiseConv2D", {"depth_multiplier": 2}, {"depthwise": True}),
}


def layer_of(keras, name, told, **more):
    """A layer of a kind, its kernel far too large."""
    kind, options, _ = KINDS[name]
    constrained = "kernel_constraint"
    large = {"kernel_initializer": drawn}
    if kind == "DepthwiseConv2D":
        constrained, large = "depthwise_constraint", {"depthwise_initializer": drawn}
    else:
        options = options | {"filters": 6}
    constraint = {} if told is None else {constrained: bounded(BOUND, **told)}
    options = options | large | constraint | more
    return getattr(keras.layers, kind)(kernel_size=3, name=name, **options)


def images(count, shape=SHAPE):
    return np.random.default_rng(0).standard_normal((count, *shape)).astype("float32")


def fit(keras, model, x, *, rate=0.5, **options):
    """Train a model to have outputs of 3 everywhere, which makes norms grow."""
    steps = options.pop("steps_per_execution", 1)
    losses = ["mse"] * len(model.outputs) if len(model.outputs) > 1 else "mse"
    optimizer = keras.optimizers.SGD(rate)
    model.compile(optimizer, losses, steps_per_execution=steps)
    go_on(model, x, **options)


def go_on(model, x, **options):
    """Train a model as it was compiled, in the same batches of 4 every time."""
    y = [np.full((len(x), *o.shape[1:]), 3.0, "float32") for o in model.outputs]
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, **options}
    model.fit(x, y if len(y) > 1 else y[0], **options)


def norm_of(layer, shape):
    """The norm of a layer, from its forward pass on a basis."""
    return norms_on_basis({0: (layer, shape)})[0]


def norms_on_basis(layers):
    """The norms of layers on inputs of some shapes, from their forward passes."""
    return {
        key: np.linalg.norm(matrix.astype("float64"), 2)
        for key, matrix in matrices_of(layers).items()
    }


def supremum(layer, index=0):
    """The certified norm of a layer's kernel at every input size."""
    found = layers(layer)[index]
    geometry = dataclasses.replace(found.geometry, grid=None)
    return float(cs.operator_norm(found.weight, geometry).lower)


def test_every_constraint_holds_in_fit(keras):
    start = keras.Input(SHAPE)
    each = [layer_of(keras, name, told) for name, (_, _, told) in KINDS.items()]
    separable = keras.layers.SeparableConv2D(
        4,
        3,
        depthwise_constraint=bounded(0.3, depthwise=True),
        depthwise_initializer="ones",
        pointwise_constraint=bounded(0.2),
        pointwise_initializer="ones",
        name="separable",
    )
    dense = keras.layers.Dense(
        2, kernel_constraint=bounded(0.4), kernel_initializer="ones", name="dense"
    )
    outputs = [layer(start) for layer in [*each, separable]]
    model = keras.Model(start, [*outputs, dense(keras.layers.Flatten()(start))])
    before = [supremum(layer) for layer in each]
    fit(keras, model, images(8), rate=0.1)
    shown = norms_on_basis({x.name: (x, (5, 6, 3)) for x in [*each, separable]})
    for layer, norm in zip(each, before):
        assert norm > 1.5 * BOUND, layer.name
        assert 0.5 * BOUND < supremum(layer) <= BOUND, layer.name
        assert 0.4 * BOUND < shown[layer.name] <= BOUND * SLACK, layer.name
    assert 0.15 < supremum(separable) <= 0.3
    assert 0.1 < supremum(separable, 1) <= 0.2
    assert shown["separable"] <= 0.06 * SLACK
    assert 0.2 < supremum(dense) <= 0.4


@pytest.mark.parametrize("name", KINDS)
def test_the_constraint_does_no_more_than_it_has_to(name, keras):
    told = KINDS[name][2]
    layer = layer_of(keras, name, None)
    layer.build((None, *SHAPE))
    kernel, norms = to_numpy(layer.kernel), []
    for stated in (told, {}):
        layer.kernel.assign(bounded(BOUND, **stated)(kernel))
        norms.append(supremum(layer))
    assert norms[0] == pytest.approx(BOUND, rel=1e-3)
    assert norms[1] < 0.95 * norms[0] if told else norms[1] == norms[0]
    inside = 0.1 * kernel
    np.testing.assert_array_equal(to_numpy(bounded(100.0)(inside)), inside)


def test_constraint_and_penalty_act_in_fit_and_are_saved_and_loaded(keras, tmp_path):
    zeros = {"kernel_initializer": "zeros"}
    constrained = layer_of(keras, "up", {"stride": (1, 2)}, **zeros)
    excess = penalty(0.2, factor=0.5, stride=1)
    penalized = layer_of(keras, "conv", None, kernel_regularizer=excess, **zeros)
    start = keras.Input(SHAPE)
    model = keras.Model(start, [constrained(start), penalized(start)])
    for layer in (constrained, penalized):
        layer.kernel.assign(drawn(layer.kernel.shape))
    before = norm_of(penalized, SHAPE)
    assert len(model.losses) == 1
    nothing = 0 * images(16)  # so that the penalty is all there is to learn
    fit(keras, model, nothing, rate=0.05, epochs=4)
    assert norm_of(penalized, SHAPE) < 0.6 * before
    assert 0.4 * BOUND < norm_of(constrained, (5, 6, 3)) <= BOUND * SLACK
    model.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    new = again.get_layer("up")
    for theirs, ours in [
        (new.kernel_constraint, constrained.kernel_constraint),
        (again.get_layer("conv").kernel_regularizer, penalized.kernel_regularizer),
    ]:
        assert type(theirs) is type(ours)
        assert theirs.get_config() == ours.get_config()
    np.testing.assert_array_equal(to_numpy(new.kernel), to_numpy(constrained.kernel))
    go_on(again, images(8))
    assert np.any(to_numpy(new.kernel) != to_numpy(constrained.kernel))
    assert 0.4 * BOUND < norm_of(new, (5, 6, 3)) <= BOUND * SLACK


def small(keras):
    """A shared layer on two sizes, a strided one and a Dense one."""
    options = {"padding": "same", "kernel_initializer": drawn}
    shared = keras.layers.Conv2D(3, 3, name="shared", **options)
    start = keras.Input(SHAPE)
    x = keras.layers.MaxPooling2D(2)(shared(start))
    x = keras.layers.Conv2D(4, 3, strides=2, name="strided", **options)(shared(x))
    x = keras.layers.Flatten()(x)
    head = keras.layers.Dense(2, kernel_initializer=drawn, name="head")
    return keras.Model(start, head(x))


@pytest.fixture(scope="module")
def compiled(keras):
    """A small model and its first weights; all passes go over this one, as compiled."""
    model = small(keras)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, model.get_weights()


@pytest.fixture
def model(compiled):
    found, first = compiled
    found.set_weights(first)
    found.optimizer.learning_rate = 0.1
    return found


SEEN = {"shared": ((6, 7, 3), (3, 3, 3)), "strided": ((3, 3, 3),)}


def norms_of(model):
    seen = [(name, shape) for name, shapes in SEEN.items() for shape in shapes]
    found = norms_on_basis({key: (model.get_layer(key[0]), key[1]) for key in seen})
    return [max(found[key] for key in seen if key[0] == name) for name in SEEN]


def test_the_callback_bounds_what_it_certifies(model):
    clip = SpectralClip(BOUND, every=1, method="scale")
    assert min(norms_of(model)) > 1.2 * BOUND
    go_on(model, images(8), callbacks=[clip])
    assert (clip.steps, clip.passes) == (2, 2)
    for norm in norms_of(model):
        assert 0.9 * BOUND < norm <= BOUND * SLACK
    assert [c.name for c in clip.last.changes] == ["shared/kernel", "strided/kernel"]
    assert all(change.after <= BOUND for change in clip.last.changes)
    assert "`linear` is False" in clip.last.skipped["head/kernel"]
    assert 0 < clip.share < 1
    assert "2 batches, 2 passes" in repr(clip)


def test_training_goes_on_from_what_the_callback_leaves(model):
    model.optimizer.learning_rate, first = 0.0, model.get_weights()
    clip_(model, BOUND)
    want = model.get_weights()
    model.set_weights(first)
    go_on(model, images(12), callbacks=[SpectralClip(BOUND, every=2)])  # 3 batches
    for got, kernel in zip(model.get_weights(), want):
        np.testing.assert_array_equal(got, kernel)


@pytest.mark.parametrize(("at_once", "steps"), [(1, [3, 6, 9]), (2, [4, 7, 9])])
def test_passes_come_after_the_right_batches(at_once, steps, keras, model):
    if at_once > 1 and keras.backend.backend() == "torch":
        return  # which executes one at a time
    said = []
    clip = SpectralClip(
        {"strided*": BOUND, "*": None},
        every=3,
        log=lambda tag, value, step: said.append((tag, value, step)),
    )
    options = {"epochs": 2, "callbacks": [clip]}  # 5 batches an epoch
    if at_once == 1:
        model.optimizer.learning_rate = 0.01
        go_on(model, images(20), **options)
    else:
        options |= {"steps_per_execution": at_once, "rate": 0.01}
        fit(keras, small(keras), images(20), **options)
    after = [(value, step) for tag, value, step in said if tag == "norm/strided/kernel"]
    assert [step for _, step in after] == steps
    assert after[-1][0] == clip.last.changes[0].after
    assert {tag for tag, _, _ in said} == {
        "norm/strided/kernel",
        "norm_before/strided/kernel",
        "spectral_clip/share_of_time",
    }
    assert clip.last.skipped["shared/kernel"] == "no bound is asked for it"
    assert clip.steps == 10


def test_what_is_frozen_or_computed_is_left_alone(keras):
    model = small(keras)
    model.get_layer("shared").trainable = False
    model.get_layer("head").enable_lora(1)
    weights = [w.copy() for w in model.get_layer("shared").get_weights()]
    clip = SpectralClip(BOUND, every=1, linear=True)
    clip.set_model(model)
    assert clip.apply().skipped == {
        "shared/kernel": "its weight is frozen",
        "head/kernel": "its kernel is computed from other weights",
    }
    for got, want in zip(model.get_layer("shared").get_weights(), weights):
        np.testing.assert_array_equal(got, want)
    assert [c.name for c in project_(model, BOUND).changes] == ["strided/kernel"]
    model.trainable = False
    with pytest.raises(ValueError, match="all of them are frozen"):
        clip_(model, BOUND)


def test_dense_layers_alone_are_refused_unless_asked_for(keras):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"only Dense layers.*`linear=True`"):
        project_(model, 0.1)
    (change,) = project_(model, 0.1, linear=True).changes
    assert change.after <= 0.1


def test_a_clip_is_that_of_the_kernel(keras):
    layer = layer_of(keras, "up", None)
    model = keras.Sequential([keras.Input(SHAPE), layer])
    (before,) = layers(model)
    done = clip_(model, 0.2)
    (after,) = layers(model)
    want = cs.clip(before.weight, before.geometry, 0.2)
    np.testing.assert_array_equal(after.weight, want)
    assert done.changes[0].before > 0.3 > done.changes[0].after
    assert "norm before" in str(done)


def values_and_gradients(keras, functions, kernels):
    """The value of each function of one array, and its derivative, by the backend."""

    def values(leaves):
        return [function(leaf) for function, leaf in zip(functions, leaves)]

    if keras.backend.backend() == "jax":
        import jax

        def total(leaves):
            found = values(leaves)
            return sum(found), found

        (_, found), slopes = jax.jit(jax.value_and_grad(total, has_aux=True))(kernels)
    elif keras.backend.backend() == "torch":
        import torch

        leaves = [torch.tensor(x, requires_grad=True) for x in kernels]
        found = values(leaves)
        sum(found).backward()
        slopes = [leaf.grad for leaf in leaves]
    else:
        import tensorflow as tf

        @tf.function(autograph=False)
        def derivative(leaves):
            with tf.GradientTape() as tape:
                tape.watch(leaves)
                found = values(leaves)
            return found, tape.gradient(found, leaves)

        found, slopes = derivative([tf.constant(x) for x in kernels])
    return [float(to_numpy(x)) for x in found], [to_numpy(x) for x in slopes]


PENALIZED = [  # shapes of kernels, and what the penalty is told
    ((3, 3, 3, 2), {}),
    ((3, 4, 2), {"stride": 2, "groups": 2}),
    ((3, 3, 2, 2), {"depthwise": True}),
    ((4, 3), {}),
]


def test_penalties_have_the_derivatives_of_finite_differences(keras):
    rng = np.random.default_rng(0)
    functions = [penalty(0.5, factor=0.1, **told) for _, told in PENALIZED]
    kernels = [rng.standard_normal(shape).astype("float32") for shape, _ in PENALIZED]
    # Derivatives are finite at zero and at ties, too.
    special = [np.zeros((3, 3, 2, 2), "float32"), np.eye(4, dtype="float32")]
    found, slopes = values_and_gradients(
        keras,
        [*functions, penalty(100.0), penalty(0.5), penalty(0.5)],
        [*kernels, kernels[0], *special],
    )
    assert found[4] == 0 < min(found[:4])
    assert all(np.all(np.isfinite(slope)) for slope in slopes)
    for function, kernel, slope in zip(functions, kernels, slopes):
        steepness = np.linalg.norm(slope)
        direction = slope / steepness
        # By doubles, as the difference of two numbers of single precision says little;
        # JAX has none, nor a penalty of them.
        step, kind = 1e-4, "float64"
        if keras.backend.backend() == "jax":
            step, kind = 1e-2, "float32"
        ahead, behind = (
            float(to_numpy(function((kernel + s * direction).astype(kind))))
            for s in (step, -step)
        )
        want = (ahead - behind) / (2 * step)
        assert steepness == pytest.approx(want, rel=1e-2)


def test_what_cannot_be_is_refused(model):
    for bad in (0, -1, float("inf"), "1", None):
        for make in (bounded, penalty, SpectralClip):
            if not (bad is None and make is SpectralClip):
                with pytest.raises(ValueError, match="`max_norm` must be a positive"):
                    make(bad)
    with pytest.raises(ValueError, match="`factor` must be a positive"):
        penalty(1.0, factor=0)
    with pytest.raises(ValueError, match="`stride` must be at least 1"):
        bounded(1.0, stride=0)
    with pytest.raises(TypeError, match="`depthwise` must be True or False"):
        bounded(1.0, depthwise=1)
    with pytest.raises(ValueError, match="`method` must be one of clip, project"):
        SpectralClip(1.0, method="crop")
    with pytest.raises(ValueError, match="`every` must be at least 1"):
        SpectralClip(1.0, every=0)
    with pytest.raises(ValueError, match="'nothing' matches none of shared/kernel"):
        go_on(model, images(4), callbacks=[SpectralClip({"nothing": 1}, 1)])


def test_xla_is_told_that_it_cannot_look_at_numbers(keras):
    if keras.backend.backend() != "tensorflow":
        return
    layer = layer_of(keras, "conv", {})
    model = keras.Sequential([keras.Input(SHAPE), layer])
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=False"):
        model.fit(images(4), np.zeros((4, 6, 7, 6)), verbose=0)


def test_a_batch_norm_is_part_of_the_bound_if_asked_for(keras):
    inputs = keras.Input((5, 4, 2))
    conv = keras.layers.Conv2D(3, 3, padding="same", kernel_initializer=drawn)
    norm = keras.layers.BatchNormalization()
    model = keras.Model(inputs, norm(conv(inputs)))
    start = to_numpy(conv.kernel)
    norm.gamma.assign([-2.0, 0.0, 0.5])
    for method in ("scale", "project", "clip"):
        conv.kernel.assign(start)
        norm.moving_variance.assign([0.1, 1.0, 4.0])
        clip = SpectralClip(BOUND, method=method, fold_batch_norm=True)
        clip.set_model(model)
        (change,) = clip.apply().changes
        found = norm_of(model, (5, 4, 2))
        assert change.before > BOUND
        assert found <= SLACK * (BOUND if method != "clip" else change.after)
        if method == "project":
            assert found > 0.9 * BOUND
            np.testing.assert_array_equal(to_numpy(conv.kernel)[..., 1], start[..., 1])
        # The statistics move, and the bound is enforced again.
        norm.moving_variance.assign([0.025, 0.25, 1.0])
        clip.apply()
        assert norm_of(model, (5, 4, 2)) <= SLACK * clip.last.changes[0].after
