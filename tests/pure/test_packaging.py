"""What is shipped: wheel and source archive, report files, the system's language, cards that cannot be trained on."""

import importlib
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from onecard.config import load
from onecard.planner import plan

speech = importlib.import_module(
    "onecard.report.language"
)  # the package has a function of that name
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Both, built without a network from a copy of the files that git knows."""
    pytest.importorskip("setuptools")
    place = tmp_path_factory.mktemp("built")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git work tree")
    copy = place / "copy"
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    code = (
        "import os, sys; from setuptools import build_meta as b; "
        f"b.build_sdist({str(place)!r}); b.build_wheel({str(place)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, check=False)
    if b"No module named" in done.stderr:
        pytest.skip(done.stderr.decode().splitlines()[-1])
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return place


def test_the_source_archive_has_what_it_takes_to_test(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "constraints.txt",
        "Makefile",
        "docs/guide.md",
        "tests/pure/test_plan.py",
        "tests/fake_driver.py",
        "tests/golden/losses.json",
        "tools/docs.py",
        "fit/reports.py",
        "src/onecard/report/locales/es/LC_MESSAGES/onecard.po",
        "src/onecard/facts/gpus.csv",
    ):
        assert name in names, name


def test_the_wheel_has_licences_facts_and_catalogues(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert any("licenses" in n and n.endswith("NOTICE.txt") for n in names)
    assert "onecard/report/locales/es/LC_MESSAGES/onecard.mo" in names
    assert "onecard/facts/gpus.csv" in names
    assert {"onecard/ui/static/page.js", "onecard/ui/templates/page.html"} <= set(names)
    assert not [
        line for line in metadata.splitlines() if "](docs/" in line or "](CHANGELOG" in line
    ]
    assert "Plan a GPT training run before you start it" in metadata


def test_the_wheel_plans_without_torch(built, tmp_path):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules['torch'] = sys.modules['numpy'] = None; "
        "import onecard; from onecard.cli import main; "
        f"assert onecard.__file__.startswith({str(tmp_path)!r}); "
        "sys.exit(main(['plan', 'gpt2', '--gpu', 'RTX 4070', '--lang', 'es']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-1000:]


def test_the_demo_names_no_file_that_is_not_installed():
    assert "docs/" not in (ROOT / "src" / "onecard" / "cli" / "demo.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("gpu", "code"),
    [
        ("V100 SXM2 16GB", "old-build"),
        ("GTX 1080", "old-build"),
        ("Arc A770", "not-trainable"),
        ("RTX 4070", None),
        ("RX 7900 XTX", None),
    ],
)
def test_plans_name_what_cannot_be_trained(gpu, code):
    found = {note.code for note in plan(load("gpt2"), gpu).warnings}
    assert found & {"old-build", "not-trainable"} == ({code} if code else set())


def test_the_systems_language(monkeypatch, tmp_path):
    import plistlib

    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert speech.language().code == "en"
    kept = tmp_path / "Library" / "Preferences" / ".GlobalPreferences.plist"
    kept.parent.mkdir(parents=True)
    with (
        monkeypatch.context() as mac
    ):  # not while anything is imported: Python itself asks for the platform
        mac.setattr(sys, "platform", "darwin")
        mac.setattr(speech.Path, "home", lambda: tmp_path)
        assert speech.system_locale() == ""  # no such file
        kept.write_bytes(plistlib.dumps({"AppleLanguages": ["es-MX", "en"]}))
        assert speech.system_locale() == "es-MX"
    monkeypatch.setattr(speech, "system_locale", lambda: "es-MX")
    assert speech.language().code == "es"
    monkeypatch.setattr(speech, "system_locale", lambda: "hi-IN")  # as Windows writes it
    assert speech.language().code == "hi"
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    assert speech.language().code == "en"  # what is set by hand wins


def test_reports_are_read_as_runs(tmp_path):
    pytest.importorskip("scipy")
    from fit.memory import readings
    from fit.reports import read_report, run_of, runs_asked_for
    from fit.speed_problem import usable

    rows = [{"check": check, "status": "ok"} for check in ("step", "memory")]
    rows += [{"check": "compiled step", "status": "fall-back"}, "junk"]
    steps = [
        0.9,
        0.3,
        0.1,
        0.02,
        0.021,
        0.022,
        0.5,
    ]  # the first start kernels, the last was held up
    log = [{"step": i, "step_seconds": s, "memory_bytes": 1e9 + i} for i, s in enumerate(steps, 1)]
    content = {
        "schema": "onecard.hardware/1",
        "device": "NVIDIA GeForce RTX 3060",
        "memory_bytes": 12 * 2**30,
        "kind": "cuda",
        "torch": "2.13.0+cu130",
        "system": "Linux",
        "date": "2026-11-16",
        "driver": "580.1",
        "checks": rows,
        "config": {"n_layer": 4, "n_head": 6, "n_embd": 384, "batch_size": 8, "compile": False},
        "dtype": "bfloat16",
        "log": ["junk", *log],
    }
    file = tmp_path / "report.json"
    file.write_text(json.dumps(content))
    (tmp_path / "other.json").write_text("{}")
    other, found = runs_asked_for(["--reports", str(tmp_path)])[-2:]
    assert (found.device.name, found.step_seconds) == ("RTX 3060 12GB", 0.0215)
    assert (found.workload.n_layer, found.workload.compiled) == (4, False)
    assert usable(found)
    (reading,) = readings([found, other])
    assert (reading.bytes, found.memory_reading) == (pytest.approx(1e9 + 7), "allocated")
    assert "other.json is no report" in other.trouble
    assert not usable(other)
    for wrong in ({"log": []}, {"config": {"n_layer": "many"}}, {"dtype": 8}, {"kind": "cpu"}):
        assert run_of("x", {**content, **wrong}).trouble

    sys.path.insert(0, str(ROOT / "tools"))
    import hardware

    page = hardware.page(f"a {hardware.BEGIN}old{hardware.END} b", [file])
    assert (
        "| NVIDIA GeForce RTX 3060 | Linux | 2.13.0+cu130 | 580.1 | 2026-11-16 | 2 | 1 | 0 |"
        in page
    )
    assert (page[:2], page[-2:]) == ("a ", " b")
    assert "old" not in page
    for junk in ("[]", "{}", '{"schema": "onecard.hardware/1"}', "{"):
        file.write_text(junk)
        with pytest.raises(ValueError):
            read_report(file)
