"""The library as callers see it: public names, plan files, threads, cost of import."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT, machine, scopes

import planner
from planner import Plan, SpecError
from planner.plan_file import write_whole

PUBLIC = """Compute Constraints Epilogue InternalError Machine Memory Operand Operator Plan PlannerError Progress Requantise
SpecError TileRule Verification VerificationError __version__ add avg_pool2d batch_matmul conv2d dense depthwise_conv2d
load_machine load_operator load_plan machine_from_dict matmul max_pool2d operator_from_dict solve""".split()


def test_public_names() -> None:
    assert sorted(planner.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(planner, name) is not None
    with pytest.raises(AttributeError):
        _ = planner.nonsense  # type: ignore[attr-defined]


def test_import_is_light() -> None:
    code = "import sys, planner; print('ortools' in sys.modules, 'pydantic' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False False False\n"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.solve(planner.conv2d((1, 4, 8, 8), (4, 4, 3, 3), pads=1, bias=True), machine("forum"))


def test_plan_file(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    assert planner.load_plan(path) == plan
    data = json.loads(plan.to_json())
    assert list(data)[:6] == ["schema_version", "status", "objective", "workload", "machine", "nest"]
    assert data["workload"]["operator"] == "generic"
    assert set(data["traffic"]) == {"input", "weight", "bias", "output"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"status": "great"}, "status"),
        ({"extra": 1}, "unknown key 'extra'"),
        ({"nest": [{"loop": "zz", "tile": 2}]}, "dim 'zz' is not declared"),
        ({"nest": [{"buffer": "input", "memory": "nowhere"}]}, "memory 'nowhere' is not declared"),
        ({"nest": [{"loop": "k"}]}, "missing"),
        ({"total_traffic_bytes": 1}, "total_traffic_bytes is 1"),
        ({"traffic": {"input": {"read_bytes": 1, "written_bytes": 0}}}, "disagrees with its links"),
        ({"objective": 3}, "objective"),
    ],
)
def test_wrong_plan_files(plan: Plan, change: dict[str, object], words: str) -> None:
    data = {**json.loads(plan.to_json()), **change}
    with pytest.raises(SpecError, match=words):
        Plan.from_json(json.dumps(data, indent=1), "plan.json")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_whole(path, "first")

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(SpecError, match="No space left"):
        write_whole(path, "second")
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_threads() -> None:
    operator, on = planner.conv2d((1, 16, 14, 14), (16, 16, 3, 3), pads=1), scopes(1024, 1024, 2048)
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: planner.solve(operator, on).to_json(), range(8)))
    assert len(set(plans)) == 1


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    planner.solve(planner.matmul(8, 8, 8), scopes(16, 16, 64)).verify()
    assert capfd.readouterr() == ("", "")


def test_a_notebook_shows_the_nest(plan: Plan) -> None:
    assert "compute" in plan._repr_html_()


def test_demands_that_exclude_each_other() -> None:
    demands = planner.Constraints.model_validate(
        {"tiles": {"input": {"k": 2}, "output": {"k": 4}}, "order": ["input@inp_buffer", "output@acc_buffer"]}
    )
    plan = planner.solve(planner.matmul(8, 8, 8), scopes(64, 64, 256))
    assert plan.status == "optimal"
    refused = planner.solve(planner.matmul(8, 8, 8, constraints=demands), scopes(64, 64, 256))
    assert refused.status == "infeasible"
    assert len(refused.conflicts) == 3


def test_writing_to_what_is_no_file(tmp_path: Path) -> None:
    """A link stays a link, and a device is written to, not replaced."""
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_whole(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "new"
    write_whole("/dev/null", "nothing")
    assert not Path("/dev/null").is_file()
    with pytest.raises(SpecError, match="cannot write"):
        write_whole("/dev/full", "too much")


def test_seeds_beyond_the_solver() -> None:
    with pytest.raises(SpecError, match="seed 2147483648 is out of range"):
        planner.solve(planner.matmul(2, 2, 2), machine("forum"), seed=2**31)
