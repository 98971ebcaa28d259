"""Small tools that only some uses need, imported when they are."""

import importlib
from types import ModuleType


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or say which extra of this package brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # it is there, but something inside it is not
        raise ModuleNotFoundError(
            f"`{module}` must be installed for this, and is not. Run "
            f"`pip install convspectra[{extra}]`.",
            name=error.name,
        ) from None
