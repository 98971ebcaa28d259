"""Run the command as `python -m convspectra`."""

from .cli import run

if __name__ == "__main__":
    run()
