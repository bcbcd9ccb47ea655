"""A table as one test: every case runs, by itself, and all that miss are told."""

import pytest
from misses import in_turn


def told(test, **fixtures):
    with pytest.raises(pytest.fail.Exception) as stop:
        test(**fixtures)
    return str(stop.value).splitlines()


def test_all_misses_are_told_by_name_with_the_line_and_the_reason():
    @in_turn("low, high", [(1, 2), pytest.param(3, 2, id="upside down"), (5, 4), (6, None)])
    def ordered(low, high):
        assert low < high

    head, first, second, third = told(ordered)
    assert head == "3 of 4 cases miss"
    assert first.startswith("upside down: line ")
    assert first.endswith("assert 3 < 2")
    assert second.startswith("5-4: line ")
    assert ": TypeError: '<' not supported" in third


def test_every_case_has_its_own_folder_patches_and_output(tmp_path, monkeypatch, capsys):
    @in_turn("name", ["A", "B"])
    def alone(name, tmp_path, empty, absent, monkeypatch, capsys):
        assert not [*tmp_path.iterdir(), *empty.iterdir()]
        assert not absent.exists()
        for file in (tmp_path / "x", empty / "x", absent):
            file.write_text(name)
        assert capsys.readouterr().out == ""
        print(name)
        monkeypatch.setattr(told, "case", name, raising=False)

    (tmp_path / "empty").mkdir()
    folders = {"empty": tmp_path / "empty", "absent": tmp_path / "absent"}
    alone(tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys, **folders)
    assert not hasattr(told, "case")


def test_a_case_that_is_left_out_is_told_and_an_empty_table_is_an_error():
    @in_turn("number", [1, 2])
    def odd(number):
        if number == 2:
            pytest.skip("even")

    with pytest.raises(pytest.skip.Exception, match="1 of 2 cases, the others hold: 2: even"):
        odd()
    with pytest.raises(AssertionError, match="without rows"):
        in_turn("number", [])(lambda number: None)()
