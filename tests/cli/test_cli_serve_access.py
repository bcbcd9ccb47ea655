"""From where `rcjax serve` may be called: what its options say, and what it refuses without a key."""

import pytest
from typer import BadParameter

from rcjax.cli.serve import _access
from rcjax.serving.gateway.catalog import Access

CASES = [
    (("127.0.0.1", [], [], False), Access((), (), guarded=True)),
    (
        ("::1", ["box.local"], ["http://localhost:3000"], False),
        Access(("box.local",), ("http://localhost:3000",), True),
    ),
    (("127.0.0.1", [], [], True), Access(None, (), guarded=False)),  # a page cannot know the key
    (("0.0.0.0", [], [], True), Access(None, (), guarded=False)),
    (("0.0.0.0", [], ["*"], False), Access(None, ("*",), guarded=True)),  # --open: by any name
    (("0.0.0.0", ["api.example"], [], True), Access(("api.example",), (), guarded=False)),
]


@pytest.mark.parametrize(("given", "access"), CASES)
def test_what_is_allowed(given, access):
    *words, has_key = given
    assert _access(*words, has_key=has_key) == access


WRONG = [
    (["http://box.local"], [], "'http://box.local' is no name of a host: give a name without a scheme and a port"),
    (["box.local:8080"], [], "'box.local:8080' is no name of a host"),
    ([""], [], "'' is no name of a host"),
    ([], ["localhost:3000"], "'localhost:3000' is no origin: give a scheme and a host"),
    ([], ["http://localhost:3000/"], "is no origin"),
    ([], ["null"], "'null' is no origin"),
]


@pytest.mark.parametrize(("names", "origins", "message"), WRONG)
def test_what_is_no_name_or_origin_is_told(names, origins, message):
    with pytest.raises(BadParameter) as told:
        _access("127.0.0.1", names, origins, has_key=False)
    assert message in str(told.value)
