"""The command line, as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SPECS

FORUM = [str(SPECS / "operators/forum-conv2d.yaml"), "--machine", str(SPECS / "machines/forum.yaml")]
SQUARE = [
    str(SPECS / "operators/resnet50/17-256x14x14-to-256-k3s1.yaml"),
    "--machine",
    str(SPECS / "machines/three-scopes-32k.yaml"),
]


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "planner.cli", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=120, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def test_solve_verify_emit_explain(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    done = run("solve", *FORUM, "-o", str(plan))
    assert done.returncode == 0
    for words in ("optimal", "465216 B", "proved minimal", "[output in acc_buffer: 1 x 16 x 56 x 64]", "compulsory"):
        assert words in done.stdout
    assert "0 of 229376 outputs differ" in run("verify", str(plan)).stdout
    kernel = tmp_path / "kernel.py"
    assert run("emit", str(plan), "--target", "python", "-o", str(kernel)).returncode == 0
    alone = subprocess.run([sys.executable, str(kernel)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (alone.returncode, alone.stdout) == (0, "0 of 229376 outputs differ\n")
    assert "each byte once" in run("explain", str(plan)).stdout


def test_json_is_the_plan_file(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    done = run("solve", *FORUM, "--json", "-o", str(plan))
    assert done.stdout == plan.read_text()
    assert json.loads(done.stdout)["total_traffic_bytes"] == 465216


def test_demands() -> None:
    tiles = ["--tile", "wgt_buffer:k=64", "--tile", "r=3", "--tile", "acc_buffer:q%7", "--tile", "c>=2"]
    done = run("solve", *SQUARE, *tiles, "--order", "input@inp_buffer,weight@wgt_buffer", "--no-spill")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert next(i for i, x in enumerate(lines) if "[input" in x) < next(
        i for i, x in enumerate(lines) if "[weight" in x
    )
    assert "[weight in wgt_buffer: 64 x" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["solve"], 2, "Missing argument"),
        (["solve", "nowhere.yaml", "-m", "x.yaml"], 2, "cannot read 'nowhere.yaml'"),
        (["solve", ".", "-m", "x.yaml"], 2, "cannot read '.'"),
        (["solve", FORUM[0], "-m", FORUM[0]], 2, "forum-conv2d.yaml:"),
        (["solve", *FORUM, "--tile", "zz=3"], 2, "no such dim"),
        (["solve", *FORUM, "--tile", "nobuffer:k=3"], 2, "no such buffer"),
        (["solve", *FORUM, "--tile", "k=17"], 2, "outside 1..16"),
        (["solve", *FORUM, "--tile", "k~3"], 2, "is no demand"),
        (["solve", *FORUM, "--order", "a@b"], 2, "no such buffer"),
        (["solve", *FORUM, "--objective", "joy"], 2, "not known"),
        (["solve", *FORUM, "--tiles", "round"], 2, "not known"),
        (["solve", *FORUM, "--time-limit", "0"], 2, "no time"),
        (["solve", *FORUM, "--workers", "0"], 2, "nobody"),
        (["solve", *FORUM, "-o", "/nowhere/plan.json"], 2, "cannot write"),
        (["solve", *FORUM, "--bogus"], 2, "No such option"),
        (["verify", FORUM[0]], 2, "this is an operator, not a plan"),
        (["verify", "/dev/null"], 2, "empty"),
        (["emit", "nowhere.json"], 2, "cannot read"),
        (["explain", "nowhere.json"], 2, "cannot read"),
        (["schema", "poem"], 2, "known: machine, operator, plan"),
    ],
)
def test_bad_input(arguments: list[str], code: int, words: str) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert words in " ".join((done.stdout + done.stderr).replace("│", " ").split())


def test_infeasible_explains_itself(tmp_path: Path) -> None:
    arguments = [
        "solve",
        str(SPECS / "operators/cases/08-pinned-tile.yaml"),
        "-m",
        str(SPECS / "machines/cases/65536b.yaml"),
    ]
    plan = tmp_path / "plan.json"
    done = run(*arguments, "-o", str(plan))
    assert done.returncode == 3
    assert "scope: its smallest tiles need 69792 B, it has 65536 B: 4256 B too much" in done.stdout
    assert run("explain", str(plan)).returncode == 3
    assert run("verify", str(plan)).returncode == 2
    assert run("emit", str(plan)).returncode == 2


def test_failed_verification(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run("solve", *FORUM, "-o", str(plan))
    data = json.loads(plan.read_text())
    data["buffers"][0]["offset_bytes"] = 64 * 1024
    plan.write_text(json.dumps(data))
    done = run("verify", str(plan))
    assert done.returncode == 1
    assert "verification failed" in done.stderr
    assert "capacity" in done.stderr


def test_a_tampered_plan_is_not_explained(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run("solve", *FORUM, "-o", str(plan))
    data = json.loads(plan.read_text())
    data["buffers"].pop()
    plan.write_text(json.dumps(data))
    done = run("explain", str(plan))
    assert done.returncode == 1
    assert "verification failed" in done.stderr


def test_no_answer_within_the_time_limit() -> None:
    """Demands leave no plan that would be at hand without searching."""
    done = run("solve", *FORUM, "--time-limit", "1e-9", "--tile", "k%3")
    assert done.returncode == 4
    assert "no plan within the time limit; nothing is proved" in done.stdout


def test_explain_takes_demands() -> None:
    done = run(
        "explain",
        *FORUM,
        "--tile",
        "acc_buffer:p=112",
        "--tile",
        "acc_buffer:q=64",
        "--tile",
        "acc_buffer:k=16",
        "--tile",
        "acc_buffer:n=2",
    )
    assert done.returncode == 3
    assert "acc_buffer: its smallest tiles need" in done.stdout


def test_time_limit_and_progress() -> None:
    arguments = [str(SPECS / "operators/cases/27-huge.yaml"), "-m", str(SPECS / "machines/forum.yaml")]
    done = run("solve", *arguments, "--time-limit", "4")
    assert done.returncode == 0
    assert "feasible" in done.stdout
    assert "gap" in done.stdout
    assert "bound" in done.stderr


def test_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    arguments = [str(SPECS / "operators/cases/27-huge.yaml"), "-m", str(SPECS / "machines/forum.yaml"), "-o", str(plan)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "planner.cli", "solve", *arguments], env=env, stderr=subprocess.PIPE, text=True
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["machine", "operator", "plan"])
def test_schemas(kind: str) -> None:
    assert "properties" in run("schema", kind).stdout


def test_version() -> None:
    assert run("--version").stdout == "planner 0.1.0\n"
