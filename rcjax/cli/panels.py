"""The panels of `--help`, in the order of what most people look for."""

TARGET = "Target: give one"
OUTPUT = "Output"
READ = "What LOG holds"
SEARCH = "Models and search"
PROMISES = "Promises"
WAITING = "Waiting"
