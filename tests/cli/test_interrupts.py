"""What signals do to a command that works for long."""

import signal

import pytest

from rcjax.cli.failures import terminable


@pytest.fixture
def handlers():
    """Those of this process, as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_second_signal_does_not_kill_a_command_that_ends(handlers):
    """It would end with the status of the signal, its files half closed."""
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    signal.raise_signal(signal.SIGTERM)


def test_a_command_that_was_not_stopped_leaves_signals_as_they_were(handlers):
    before = signal.getsignal(signal.SIGTERM)
    with terminable():
        pass
    assert signal.getsignal(signal.SIGTERM) == before
