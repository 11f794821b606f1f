"""What a wheel holds, and that it does in an empty folder what the scripts do in the clone."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest

from tests.test_architecture import ROOT

SOURCES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
BUNDLED = (
    "sample_text.txt",
    "sample_text.md",
    *(f"examples/pairs/{name}.tsv" for name in ("train", "dev", "test")),
)
COMMANDS = {
    "data": "create_pretraining_data.py",
    "pretrain": "run_pretraining_gpu.py",
    "classify": "run_classifier.py",
}
# what `python -m build` calls
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, f"build_{sys.argv[1]}")(sys.argv[2]))
"""


def build(kind, source, folder):
    """The path of the sdist or wheel of the sources in a folder."""
    call = [sys.executable, "-c", BUILD, kind, folder]
    lines = subprocess.run(call, cwd=source, capture_output=True, text=True, check=True).stdout
    return folder / lines.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built from the sdist, so that both must hold what it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(
        ROOT / "bert_gpu", source / "bert_gpu", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in (*SOURCES, *BUNDLED):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    with tarfile.open(build("sdist", source, folder)) as archive:
        archive.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    return build("wheel", unpacked, folder)


def test_a_wheel_holds_the_package_the_sample_the_pairs_and_the_license(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    about = next(name for name in held if name.endswith("/METADATA")).removesuffix("METADATA")
    files = {name: content for name, content in held.items() if not name.startswith(about)}
    expected = {
        str(path.relative_to(ROOT)): path.read_bytes() for path in (ROOT / "bert_gpu").rglob("*.py")
    }
    expected |= {f"bert_gpu/bundled/{name}": (ROOT / name).read_bytes() for name in BUNDLED}
    assert files == expected
    (license_file,) = (name for name in held if name.endswith("/LICENSE"))
    assert held[license_file] == (ROOT / "LICENSE").read_bytes()
    assert b"bert-gpu = bert_gpu.__main__:main" in held[f"{about}entry_points.txt"]


def test_an_installed_command_finds_its_sample_and_has_its_own_name(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "bert_gpu", *arguments],
            cwd=tmp_path / "empty",
            env=os.environ | dict(PYTHONPATH=str(tmp_path / "site")),
            capture_output=True,
            text=True,
        )

    shown = run("data", "--show_config").stdout
    assert f"--input_file={tmp_path}/site/bert_gpu/bundled/sample_text.txt " in shown
    assert "bert-gpu data --input_file=" in (taught := run("data", "--help").stdout)
    assert ".py" not in taught
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.long
def test_an_installed_wheel_does_what_the_scripts_do_in_the_clone(wheel, tmp_path):
    """Its dependencies are those of the environment of the tests, which it sees behind its own
    packages; the clone's editable install is not seen that way.
    """
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    folder = sysconfig.get_path("purelib", vars=dict(base=str(tmp_path / "venv")))
    pathlib.Path(folder, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(place, *call):
        (tmp_path / place).mkdir(exist_ok=True)
        result = subprocess.run(
            call, cwd=tmp_path / place, env=clean, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    run("installed", python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    found = run("installed", python, "-c", "import bert_gpu; print(bert_gpu.__file__)")
    assert found.startswith(f"{folder}/bert_gpu/")

    steps = dict(data=[], pretrain=["--num_train_steps=3"], classify=["--num_train_steps=3"])
    for name, script in COMMANDS.items():
        installed = [tmp_path / "venv" / "bin" / "bert-gpu", name]
        cloned = [sys.executable, ROOT / script]
        # with no flags at all, the settings are the same
        shown = run("installed", *installed, "--show_config")
        assert shown.replace(f"{folder}/bert_gpu/bundled", str(ROOT)) == run(
            "cloned", *cloned, "--show_config"
        )
        run("installed", *installed, *steps[name])
        run("cloned", *cloned, *steps[name])

    ours, theirs = (contents(tmp_path / place) for place in ("installed", "cloned"))
    assert ours.keys() == theirs.keys()
    assert {"data/dataset.json", "data/vocab.txt", "runs/classify/test_results.tsv"} <= ours.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def contents(folder):
    """{path: bytes} of what does not depend on the clock: data sets, models, results."""
    kinds = (".tfrecord", ".txt", ".safetensors", ".tsv", "config.json", "dataset.json")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.name.endswith(kinds)
    }
