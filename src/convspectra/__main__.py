"""Run the command as `python -m convspectra`."""

from ._cli.main import run

if __name__ == "__main__":
    run()
