"""The generated reference lists the arguments that a docstring has, and no others."""

from benchmarks.make_reference import parameters


def test_a_line_that_goes_on_is_no_argument():
    text = "support: it lives in. Ends, as far as they are\n    finite: where one is open, name a number.\n*names: all."
    assert parameters(text.split("\n")) == (
        "- `support`: it lives in. Ends, as far as they are\n  finite: where one is open, name a number.\n"
        "- `*names`: all."
    )
