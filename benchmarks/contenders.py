"""All contenders, as far as their libraries are installed."""

from importlib import import_module

from .contender import Contender

# The modules that hold the contenders of a library, which their names end with.
MODULES = {
    "NumPy": ("by_numpy", "ours"),
    "torch": ("by_torch",),
    "JAX": ("by_jax",),
    "TensorFlow": ("by_tensorflow",),
}
PAPER, OURS = "paper, NumPy", "convspectra, NumPy"


def of_library(library: str) -> tuple[Contender, ...]:
    """The contenders of one library, which must be installed."""
    found: list[Contender] = []
    for name in MODULES[library]:
        found.extend(import_module(f".{name}", __package__).CONTENDERS)
    return tuple(found)


def contender(name: str) -> Contender:
    """The contender of this name; no library but its own is imported."""
    library = name.rpartition(", ")[2]
    return next(found for found in of_library(library) if found.name == name)


def installed() -> tuple[tuple[Contender, ...], tuple[str, ...]]:
    """All contenders that can run here, and the libraries that are not installed."""
    found: list[Contender] = []
    missing: list[str] = []
    for library in MODULES:
        try:
            found.extend(of_library(library))
        except ModuleNotFoundError as error:
            if error.name != library.lower():
                raise
            missing.append(library)
    return tuple(sorted(found, key=lambda one: one.is_ours)), tuple(missing)
