"""The benchmark behind `convspectra bench`: public names against what others do."""
