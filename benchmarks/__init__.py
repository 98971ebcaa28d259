"""convspectra beside what others do: `python -m benchmarks --help`."""
