"""The inputs of a replay: recorded traces and synthetic mixes."""
