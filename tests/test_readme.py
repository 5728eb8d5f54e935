"""README and docs tell the truth: Python blocks run, and the shown output is what the command prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("path", [p for p in PAGES if _blocks(p, "python")], ids=lambda p: p.name)
def test_python_blocks_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for block in _blocks(path, "python"):
        exec(compile(block, path.name, "exec"), names)


def test_the_shown_output_is_real(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"<!-- output: solve -->\n```console\n\$ planner (.*?)\n(.*?)```", readme, re.DOTALL)
    assert found is not None
    arguments = [str(tmp_path / "plan.json") if a == "plan.json" else a for a in found[1].split()]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "planner.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=True)

    def timeless(text: str) -> str:
        return re.sub(r"solved in [\d.]+ s", "solved in _ s", text)

    assert timeless(done.stdout) == timeless(found[2])


def test_yaml_blocks_load(tmp_path: Path) -> None:
    import planner

    blocks = _blocks(ROOT / "docs" / "specs.md", "yaml")
    machine, operator = blocks[0], blocks[1]
    (tmp_path / "machine.yaml").write_text(machine)
    (tmp_path / "operator.yaml").write_text(operator)
    assert planner.load_machine(tmp_path / "machine.yaml").scopes
    assert planner.load_operator(tmp_path / "operator.yaml").macs == 256 * 256 * 14 * 14 * 9


def test_the_changelog_names_the_version() -> None:
    import planner

    assert f"## {planner.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_excerpts_are_real() -> None:
    for path in PAGES:
        found = re.findall(r"<!-- excerpt: (.*?) -->\n```\w+\n(.*?)```", path.read_text(), re.DOTALL)
        for source, text in found:
            assert text in (ROOT / source).read_text(), (path.name, source)


def test_the_command_for_tvm(tmp_path: Path) -> None:
    """One command writes the kernel and the schedule of the README's convolution."""
    import planner
    from planner.cli import app

    operator = planner.load_operator(ROOT / "specs" / "operators" / "forum-conv2d.yaml")
    plan = planner.solve(operator, planner.load_machine(ROOT / "specs" / "machines" / "forum.yaml"))
    (tmp_path / "plan.json").write_text(plan.to_json())
    arguments = ["emit", str(tmp_path / "plan.json"), "--target", "tvmscript,tvm-schedule", "-o", str(tmp_path / "tvm")]
    app(arguments, standalone_mode=False)
    for name, golden in (
        ("forum_conv2d.tvmscript.py", "forum-conv2d.tvmscript.py"),
        ("forum_conv2d_schedule.py", "forum-conv2d_schedule.py"),
    ):
        assert (tmp_path / "tvm" / name).read_text() == (ROOT / "tests" / "goldens" / golden).read_text()
