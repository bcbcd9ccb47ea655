"""The panels of `--help`, in the order of what most people look for."""

__all__ = ["OUTPUT", "PROMISES", "READ", "SEARCH", "TARGET", "WAITING"]

TARGET = "Target: give one"
OUTPUT = "Output"
READ = "What LOG holds"
SEARCH = "Models and search"
PROMISES = "Promises"
WAITING = "Waiting"
