"""Each of five wrong detectors makes a test of the detectors fail: applied to a copy of the source, one at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ("test_betting.py", "test_betting_mutations.py", "test_blocks.py", "test_rates.py", "test_acceptance.py")
#: File, what stands there, what a careless hand makes of it.
MUTATIONS = {
    "the + 1 is dropped": (
        "betting.py",
        "_log_add_one(wealth + log1p(bet * excess))",
        "(wealth + log1p(bet * excess))",
    ),
    "a bet exceeds 1/m0": ("defaults.py", "LARGEST_BET = 0.02, 0.5", "LARGEST_BET = 0.02, 1.5"),
    "the sides are swapped": ("betting.py", "excess = observation - self.m0", "excess = self.m0 - observation"),
    "relearning after an alarm": (
        "betting.py",
        "        return Alarm(\n            detector=self.name,",
        "        self.m0 = observation\n        self.reset()\n        return Alarm(\n            detector=self.name,",
    ),
    "too short a block": ("defaults.py", "TIMES = 10", "TIMES = 1"),
}


def run_tests(root: Path) -> subprocess.CompletedProcess[str]:
    paths = [f"tests/unit/detectors/{name}" for name in TESTS]
    arguments = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *paths]
    environment = {**os.environ, "PYTHONPATH": str(root / "daemon"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(arguments, cwd=root, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "*.onnx", "photos")
    shutil.copytree(ROOT / "daemon", root / "daemon", ignore=ignored)
    shutil.copytree(ROOT / "tests" / "unit" / "detectors", root / "tests" / "unit" / "detectors", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", root / "pyproject.toml")
    return root


@pytest.mark.slow
def test_as_it_is_all_pass(copy: Path) -> None:
    found = run_tests(copy)
    assert found.returncode == 0, found.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_makes_a_test_fail(copy: Path, name: str) -> None:
    file, right, wrong = MUTATIONS[name]
    path = copy / "daemon" / "tidegauge" / "detectors" / file
    source = path.read_text()
    assert source.count(right) == 1, f"{file} has changed: correct the mutation"
    path.write_text(source.replace(right, wrong))
    try:
        found = run_tests(copy)
    finally:
        path.write_text(source)
    failed = [line for line in found.stdout.splitlines() if line.startswith("FAILED")]
    print(f"{name}: {failed}")
    assert found.returncode == 1 and "failed" in found.stdout, found.stdout[-3000:]
