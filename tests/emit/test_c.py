"""Emitted C: compiled without a warning, run under sanitizers, equal to the reference, and moving what the plan says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hand_plans import attach_all, plan_of
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from kernel_cases import OPERATORS, aligned, machine, small
from random_nests import plans, written
from random_problems import problem

import planner
from planner import Machine, Operator, Plan, SpecError
from planner.emit import emit_files
from planner.plan import Attach, Loop

GCC = shutil.which("gcc")
pytestmark = pytest.mark.skipif(GCC is None, reason="gcc is not installed")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"]
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
LATE = """
#include <stdio.h>
#include <stdlib.h>
extern unsigned long long planner_dma_bytes[];
struct late { int channel; unsigned char *to; const unsigned char *from; size_t bytes; };
static struct late late[200000];
static int waiting;
/* Nothing is there before it has been waited for; until then, junk is. */
static inline void planner_dma_2d_start(int channel, void *to, ptrdiff_t to_row, ptrdiff_t to_column,
                                        const void *from, ptrdiff_t from_row, ptrdiff_t from_column,
                                        ptrdiff_t rows, ptrdiff_t columns, size_t bytes)
{
    for (ptrdiff_t row = 0; row < rows; ++row) {
        for (ptrdiff_t column = 0; column < columns; ++column) {
            struct late one = {channel, (unsigned char *)to + row * to_row + column * to_column,
                               (const unsigned char *)from + row * from_row + column * from_column, bytes};
            memset(one.to, 0xCC, bytes);
            planner_dma_bytes[channel] += bytes;
            if (waiting == 200000) { abort(); }
            late[waiting++] = one;
        }
    }
}
static inline void planner_dma_wait(int channel)
{
    int kept = 0;
    for (int i = 0; i < waiting; ++i) {
        if (late[i].channel == channel) { memcpy(late[i].to, late[i].from, late[i].bytes); }
        else { late[kept++] = late[i]; }
    }
    waiting = kept;
}
"""


def build(plan: Plan, folder: Path, *options: str) -> Path:
    """The test program of a plan's kernel, compiled."""
    files = emit_files(plan, "c")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "late.h").write_text(LATE, encoding="utf-8")
    sources = [name for name in files if name.endswith(".c")]
    command = ["gcc", *STRICT, *options, *sources, "-lm", "-o", "kernel"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "kernel"


def run(program: Path) -> str:
    done = subprocess.run([program], capture_output=True, text=True, check=False, cwd=program.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("0 of "), done.stdout
    return done.stdout


def assert_right(plan: Plan, folder: Path) -> None:
    """Equal outputs, twice in a row, and the predicted bytes on each link; with transfers at once, and as late as can be."""
    run(build(plan, folder, *SANITIZED, "-DPLANNER_COUNT"))
    if any(b.copies > 1 for b in plan.buffers):
        run(build(plan, folder, *SANITIZED, "-DPLANNER_COUNT", '-DPLANNER_DMA_HEADER="late.h"'))


@settings(
    max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(plans())
def test_every_nest(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    note(written(plan))
    assert_right(aligned(plan), tmp_path_factory.mktemp("c"))


@settings(
    max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.integers(0, 299))
def test_solved_problems(tmp_path_factory: pytest.TempPathFactory, number: int) -> None:
    """Random operator and machine -> plan -> C -> gcc -> equal."""
    operator, machine = problem(number)
    note(f"python tests/random_problems.py {number}")
    plan = planner.solve(Operator.model_validate(operator), Machine.model_validate(machine))
    if plan.nest:
        assert_right(plan, tmp_path_factory.mktemp("c"))


@pytest.mark.parametrize("copies", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", OPERATORS)
def test_operators(kind: str, depth: int, copies: bool, tmp_path: Path) -> None:
    plan = planner.solve(OPERATORS[kind], machine(depth, copies=copies, kib=0.75))
    assert plan.status == "optimal"
    plan.verify()
    assert_right(plan, tmp_path)


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_long_transfers_are_split(limit: int, tmp_path: Path) -> None:
    run(build(small(), tmp_path, *SANITIZED, "-DPLANNER_COUNT", f"-DPLANNER_MAX_TRANSFER_BYTES={limit}"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("planner_dma_wait(MATMUL_LOAD", "(void)(MATMUL_LOAD"),
        ("planner_dma_wait(MATMUL_STORE", "(void)(MATMUL_STORE"),
        ("sum += ", "sum += 1u + "),
        ("if (k_0 == 0)", "if (k_0 == 3)"),
        ("_ahead, ", ", "),
    ],
)
def test_a_broken_kernel_is_seen(old: str, new: str, tmp_path: Path) -> None:
    program = build(small(), tmp_path, "-DPLANNER_COUNT", '-DPLANNER_DMA_HEADER="late.h"')
    run(program)
    source = next(p for p in tmp_path.glob("*.c") if not p.name.startswith("test_"))
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    options = ["-std=c99", "-w", "-DPLANNER_COUNT", '-DPLANNER_DMA_HEADER="late.h"']
    subprocess.run(["gcc", *options, *[p.name for p in tmp_path.glob("*.c")], "-o", "broken"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "broken"], capture_output=True, text=True, check=False)
    assert done.returncode != 0


def test_the_kernel_of_the_readme(specs: Path, tmp_path: Path) -> None:
    """`cc -std=c99 kernel/*.c -lm`, as the README says, and what it says that prints."""
    operator = planner.load_operator(specs / "operators" / "forum-conv2d.yaml")
    plan = planner.solve(operator, planner.load_machine(specs / "machines" / "forum.yaml"))
    for name, text in emit_files(plan, "c").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    subprocess.run(["gcc", "-std=c99", *sorted(tmp_path.glob("*.c")), "-lm", "-o", tmp_path / "kernel"], check=True)
    assert run(tmp_path / "kernel") == "0 of 229376 outputs differ\n"


def test_an_input_that_only_padding_is_read_of(tmp_path: Path) -> None:
    """A stride may step over all there is: nothing is fetched, and nothing is waited for."""
    spec = {
        "name": "skips",
        "dims": {"q": 2, "p": 3},
        "operands": {
            "x": {"role": "input", "dtype": "int8", "shape": [1, 3], "index": ["2*q - 1", "p"]},
            "y": {"role": "output", "dtype": "int32", "shape": [2, 3], "index": ["q", "p"]},
        },
        "accumulate": "int32",
    }
    operator = Operator.model_validate(spec)
    for copies in (False, True):
        on = machine(1, copies=copies)
        nest = [Attach("y", "l1"), Loop("p", 1), Attach("x", "l1"), Loop("q", 1)]
        assert_right(aligned(plan_of(operator, on, nest)), tmp_path)


def test_what_c_has_not() -> None:
    operator = planner.matmul(4, 4, 4, dtype="float16", accumulate="float32")
    machine = Machine.model_validate(
        {"name": "m", "memories": [{"name": "dram"}, {"name": "l1", "parent": "dram", "capacity": 4096}]}
    )
    plan = plan_of(operator, machine, attach_all(operator, "l1"))
    with pytest.raises(SpecError, match="float16, which C99 has not"):
        plan.emit("c")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`planner emit --target c -o DIR` writes all that the compiler needs; without -o it prints the kernel."""
    from planner.cli import app

    plan = small()
    (tmp_path / "plan.json").write_text(plan.to_json())
    app(
        ["emit", str(tmp_path / "plan.json"), "--target", "c", "-o", str(tmp_path / "new" / "c")], standalone_mode=False
    )
    written = sorted(p.name for p in (tmp_path / "new" / "c").iterdir())
    assert written == ["matmul.c", "matmul.h", "planner_dma.h", "test_matmul.c"]
    capsys.readouterr()
    app(["emit", str(tmp_path / "plan.json"), "--target", "c"], standalone_mode=False)
    assert capsys.readouterr().out == (tmp_path / "new" / "c" / "matmul.c").read_text()
    with pytest.raises(SpecError, match="cannot make the directory"):
        app(
            ["emit", str(tmp_path / "plan.json"), "--target", "c", "-o", str(tmp_path / "plan.json")],
            standalone_mode=False,
        )
