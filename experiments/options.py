"""What an experiment is told: scale, folders, device, and where its units run."""

from dataclasses import dataclass, field
from pathlib import Path

SCALES = ("small", "paper")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line, the same for every experiment.

    Attributes
    ----------
    scale : {"small", "paper"}
        What two CPU cores finish, or the setting as published.
    data : Path or None
        The folder with CIFAR-10; `images.read_cifar10` says what is in it.
    out : Path
        The folder of all results: each experiment has a folder of its own in it.
    device : str
        What torch trains on.
    jobs : int
        How many units of an experiment run at once, one thread each.
    scheduler : str or None
        The address of a Dask scheduler that runs the units instead.
    networks : tuple of Path
        Files of networks, for the experiments that look at trained ones.
    """

    scale: str = "small"
    data: Path | None = None
    out: Path = Path("experiment-results")
    device: str = "cpu"
    jobs: int = 1
    scheduler: str | None = None
    networks: tuple[Path, ...] = field(default=())

    def folder(self, name: str) -> Path:
        """The folder of the results of the experiment `name`."""
        return self.out / name

    def data_folder(self) -> Path:
        """The folder with CIFAR-10, which this experiment needs."""
        if self.data is None:
            raise ValueError(
                "This experiment needs CIFAR-10: name its folder with --data FOLDER, "
                "or add --download to have it fetched into that folder."
            )
        return self.data
