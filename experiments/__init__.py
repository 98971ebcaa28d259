"""Does what the paper says hold? One file per claim, each run by one command."""
