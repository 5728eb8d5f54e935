"""The examples run, and end well."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="apache-tvm is not installed")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example(path: object) -> None:
    done = subprocess.run([sys.executable, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 25088 outputs differ" in done.stdout
