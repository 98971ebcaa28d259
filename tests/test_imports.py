"""The public surface, and what importing it must not bring along."""

import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest
from optional import needed

import convspectra

PUBLIC = """
    Cost Geometry Layer LayerSpectrum NormBounds Plan Projection Report Summary
    TopVectors clip dense_matrix operator_norm plan project scale_to singular_values
    spectra summarize top_vectors
"""


TRAINING = "Change Layers Pass SpectralClip bounded clip_ layers penalty project_"
IN_TORCH = f"LipschitzBounds LipschitzPart lipschitz {TRAINING}"
IN_JAX = """
    Layers SpectralClipState clip clip_tree layers norm_estimate penalty project_tree
    spectral_clip
"""


def test_public_names_are_these():
    assert {
        name
        for name, value in vars(convspectra).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    } == set(PUBLIC.split())


def test_the_version_is_that_of_the_installed_package():
    assert convspectra.__version__ == version("convspectra")


@pytest.mark.parametrize("name", PUBLIC.split())
def test_public_names_are_documented(name):
    assert getattr(convspectra, name).__doc__


@pytest.mark.parametrize(
    ("framework", "expected"),
    [("jax", IN_JAX), ("keras", TRAINING), ("torch", IN_TORCH)],
)
def test_public_names_of_the_training_side_are_these(framework, expected):
    needed("flax" if framework == "jax" else framework)
    found = getattr(convspectra, framework)  # imported when it is asked for
    names = {name for name in vars(found) if not name.startswith("_")}
    assert names - {"lightning", "transformers"} == set(expected.split())
    assert all(getattr(found, name).__doc__ for name in names)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        convspectra.nothing  # noqa: B018


FRAMEWORKS = "flax jax keras matplotlib numba optax rich safetensors scipy tensorflow"
IMPORTED = f"""
import sys, convspectra.baselines
print(*[name for name in {[*FRAMEWORKS.split(), "torch"]} if name in sys.modules])
"""


def output_of(code, *arguments):
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_importing_the_package_imports_no_framework():
    assert output_of(IMPORTED).split() == []


REPORT = """
import sys
from convspectra._cli.main import main
main(["report", "-o", sys.argv[1]])
print("numba" in sys.modules)
"""


def test_a_report_on_a_small_network_waits_for_nothing_to_be_compiled(tmp_path):
    assert output_of(REPORT, str(tmp_path)).split()[-1] == "False"
    assert (tmp_path / "spectra.png").exists()


# A module that is None cannot be imported; one that is not needed is a module without
# anything in it, as imports take time.
MISSING = """
import sys
from types import ModuleType

for module, present in [
    ("torch", ""), ("keras", ""), ("jax", ""), ("flax", "jax"), ("optax", "jax flax"),
    ("tensorflow", ""),
]:
    for name in present.split():
        sys.modules[name] = ModuleType(name)
    sys.modules[module] = None
    framework = {"torch": "torch", "keras": "keras", "tensorflow": "keras"}.get(module)
    try:
        __import__(f"convspectra.{framework or 'jax'}")
    except ModuleNotFoundError as error:
        print(error)
    del sys.modules[module]
"""


def test_a_missing_framework_is_one_line_with_the_name_of_the_extra():
    *lines, last = output_of(MISSING).splitlines()
    assert lines == [
        f"`{module}` must be installed for this, and is not. Run "
        f"`pip install 'convspectra[{extra}]'`."
        for module, extra in {
            "torch": "torch",
            "keras": "keras",
            "jax": "jax",
            "flax": "jax",
            "optax": "jax",
        }.items()
    ]
    assert last.startswith("Keras's backend must be installed, and `tensorflow` is not")
    assert "'convspectra[keras]'" in last
