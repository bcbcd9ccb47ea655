"""The wheel and the source distribution: what they hold, and that they work where nothing else of rcjax is."""

import contextlib
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import gateway_process

ROOT = Path(__file__).parents[1]
HEAVY = {"jax", "jaxlib", "narwhals", "numpy", "polars", "scipy"}


def run(*command, **options):
    """The output of a command that ends well."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(the wheel, the source distribution), as `python -m build` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def of_the_package(suffixes=(".py", ".pyi", ".json", ".js", ".css", ".jinja", ".typed")):
    """The files of the package below `rcjax`, its pages apart."""
    paths = [path.relative_to(ROOT) for path in (ROOT / "rcjax").rglob("*") if path.suffix in suffixes]
    return {path.as_posix() for path in paths if path.parts[1] != "docs"} | {"rcjax/py.typed"}


@pytest.mark.thorough
def test_distributions_hold_the_package_and_nothing_else(built):
    wheel, source = built
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (licence,) = (name for name in archive.namelist() if name.endswith("licenses/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert names == of_the_package()
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rcjax" / "docs").rglob("*") if path.is_file()}
    others = {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "PKG-INFO", ".gitignore"}
    assert names == of_the_package() | pages | others
    assert wheel.stat().st_size < 900_000
    assert source.stat().st_size < 900_000


@pytest.mark.thorough
def test_an_index_accepts_the_distributions(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *built)


@contextlib.contextmanager
def environment(folder):
    """The programs of an empty environment, by name."""
    venv.create(folder, with_pip=True)
    yield lambda name: folder / "bin" / name


def names_of(pip):
    return {line.partition("==")[0].lower() for line in run(pip, "list", "--format=freeze").splitlines()}


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="an environment has its programs in another folder there")
def test_the_documented_command_installs_a_service_without_jax(built, tmp_path):
    with environment(tmp_path / "light") as program:
        place = {**os.environ, "PATH": f"{program('')}:{os.environ['PATH']}"}
        page = (ROOT / "rcjax" / "docs" / "serving_operation.md").read_text("utf-8")
        (command,) = (line for line in page.splitlines() if "rcjax --requirements" in line)
        run("bash", "-ec", command.replace("--no-deps .", f"--no-deps {built[0]}"), cwd=tmp_path, env=place)
        assert not names_of(program("pip")) & HEAVY
        with gateway_process(None, lambda *_: Response(sure("B", -0.1)), python=str(program("python"))) as service:
            assert service.ask().json["choices"][0]["message"]["content"] == "B"
        refused = subprocess.run([program("rcjax"), "demo"], capture_output=True, text=True)
        advice = "which an installation for rcjax serve alone lacks: pip install rcjax"
        assert refused.stderr == f"error: this needs jax, {advice}\n"


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="an environment has its programs in another folder there")
def test_a_wheel_in_an_empty_environment_runs_the_demo(built, tmp_path):
    with environment(tmp_path / "whole") as program:
        run(program("pip"), "install", "--quiet", built[0])
        assert {*HEAVY, "rcjax"} <= names_of(program("pip"))
        assert "budget" in run(program("rcjax"), "demo", cwd=tmp_path)
        assert "--drain" in run(program("rcjax"), "serve", "--help")
