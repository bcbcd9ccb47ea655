"""A file that `rcjax serve` lacks: what it is, and how one comes to have it."""

import pytest
from command_line import fail

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.mark.parametrize(
    ("policy", "models", "missing", "advice"),
    [
        (
            "absent.json",
            "models.toml",
            "absent.json",
            "rcjax tune writes a policy with --out; to begin without one, give --pass with the name of today",
        ),
        ("policy.json", "absent.toml", "absent.toml", "give a table for each model that the policy asks"),
    ],
)
def test_a_file_that_is_not_there_is_told_with_what_makes_it(tmp_path, policy, models, missing, advice):
    (tmp_path / "policy.json").write_text("{}")
    (tmp_path / "models.toml").write_text('[small]\nbase_url = "http://localhost:1/v1"\ninput = 1\noutput = 2\n')
    said = fail("serve", tmp_path / policy, "--models", tmp_path / models)
    assert f"{tmp_path / missing}: there is no such file: {advice}" in said
