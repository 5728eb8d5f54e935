"""The command line: solve, verify, emit, explain, schema. Exit status 0 plan, 2 bad input, 3 infeasible, 4 no answer, 1 bug."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from planner import __version__
from planner.errors import InternalError, SpecError, VerificationError

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.spec.machine import Machine
    from planner.spec.operator import Operator
    from planner.tiling.solve import Progress

EXIT_BUG, EXIT_INPUT, EXIT_INFEASIBLE, EXIT_UNKNOWN, EXIT_INTERRUPT = 1, 2, 3, 4, 130
EXIT_OF_STATUS = {"optimal": 0, "feasible": 0, "infeasible": EXIT_INFEASIBLE, "unknown": EXIT_UNKNOWN}

app = typer.Typer(
    name="planner",
    help="Plan buffers, tiles and loop order for accelerators with software-managed memories, with proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

OperatorFile = Annotated[str, typer.Argument(metavar="OPERATOR", help="Operator file (YAML or JSON).")]
PlanPath = Annotated[str, typer.Argument(metavar="PLAN", help="Plan file (JSON), as solve -o writes it.")]
MachineFile = Annotated[str, typer.Option("--machine", "-m", help="Machine file (YAML or JSON).")]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Write to this file instead of the screen.")]
TileRules = Annotated[
    list[str] | None,
    typer.Option(
        "--tile", help="A demand on a tile: PLACE:DIM=N, %N (multiple of), >=N or <=N; PLACE may be left out."
    ),
]

TileSizes = Annotated[str, typer.Option(help="ragged: every integer size; divisors: dividing ones only.")]
TimeLimit = Annotated[
    float | None,
    typer.Option(help="Seconds; then the best plan so far, with its bound. Without it, until the plan is proved."),
]
Order = Annotated[str | None, typer.Option(help="Attach points OPERAND@MEMORY,... outermost first.")]
NoSpill = Annotated[bool, typer.Option("--no-spill", help="Partial sums may not leave a scope and come back.")]


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(f"planner {__version__}")
        raise typer.Exit
    del context


@app.command()
def solve(
    operator: OperatorFile,
    machine: MachineFile,
    objective: Annotated[str, typer.Option(help="What to minimise.")] = "traffic",
    tiles: TileSizes = "ragged",
    time_limit: TimeLimit = None,
    workers: Annotated[int | None, typer.Option(help="Threads. The plan does not depend on it.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the solver's search.")] = 0,
    tile: TileRules = None,
    order: Order = None,
    no_spill: NoSpill = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan file instead of the report.")] = False,
    output: Output = None,
) -> None:
    """Find the cheapest plan and prove it."""
    from planner.plan_file import write_whole
    from planner.report import plan_text

    loaded = _demanding(_operator(operator), tile or [], order, no_spill)
    plan = _solve(loaded, _machine(machine), objective, tiles, time_limit, workers, seed)
    if output is not None:
        write_whole(output, plan.to_json())
    print(plan.to_json() if as_json else plan_text(plan), end="" if as_json else "\n")
    raise typer.Exit(EXIT_OF_STATUS[plan.status])


@app.command()
def verify(
    plan: PlanPath,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
) -> None:
    """Recompute a plan and run its kernel against a plain reference."""
    found = _plan(plan).verify(seed)
    print(f"0 of {found.outputs} outputs differ from the reference")
    print(f"{found.traffic_bytes} B moved from and to the backing store in {found.transfers} transfers over all links:")
    print("model, check and interpreter agree on every operand")


@app.command()
def emit(
    plan: PlanPath,
    target: Annotated[
        str,
        typer.Option(
            help="What to write: python, c, tvmscript, tvm-schedule, mlir, mlir-transform; or several, with commas."
        ),
    ] = "python",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write; a directory for c, or for several targets."),
    ] = None,
) -> None:
    """Write a plan's kernel as source text."""
    from planner.emit import emit_files
    from planner.plan_file import make_directory, write_whole

    loaded, targets = _plan(plan), [t.strip() for t in target.split(",")]
    if output is None:
        print("\n".join(loaded.emit(t) for t in targets), end="")
        return
    files = {name: text for t in targets for name, text in emit_files(loaded, t).items()}
    if len(files) == 1:
        write_whole(output, *files.values())
        return
    directory = make_directory(output)
    for name, text in files.items():
        write_whole(directory / name, text)
    print("wrote " + ", ".join(str(directory / name) for name in files))


@app.command()
def explain(
    source: Annotated[str, typer.Argument(metavar="PLAN|OPERATOR", help="Plan file, or operator file with --machine.")],
    machine: Annotated[str | None, typer.Option("--machine", "-m", help="Machine file: solve first.")] = None,
    tiles: TileSizes = "ragged",
    time_limit: TimeLimit = None,
    tile: TileRules = None,
    order: Order = None,
    no_spill: NoSpill = False,
) -> None:
    """Say why a plan is as it is, or why there is none. The options are for solving first, with --machine."""
    from planner.report import explain_text

    if machine is None:
        if tiles != "ragged" or time_limit is not None or tile or order is not None or no_spill:
            raise SpecError("demands and limits are for solving; give an operator and --machine, or a plan alone")
        plan = _plan(source)
        plan.check()
    else:
        loaded = _demanding(_operator(source), tile or [], order, no_spill)
        plan = _solve(loaded, _machine(machine), "traffic", tiles, time_limit, None, 0)
    print(explain_text(plan))
    raise typer.Exit(EXIT_OF_STATUS[plan.status])


@app.command()
def schema(kind: Annotated[str, typer.Argument(help="machine, operator or plan.")]) -> None:
    """Print the JSON schema of a kind of file."""
    from planner.plan_file import plan_schema
    from planner.spec.load import machine_schema, operator_schema

    known = {"machine": machine_schema, "operator": operator_schema, "plan": plan_schema}
    if kind not in known:
        raise SpecError(f"schema {kind!r} is not known; known: {', '.join(known)}")
    print(json.dumps(known[kind](), indent=1))


def _operator(path: str) -> Operator:
    from planner.spec.load import load_operator

    return load_operator(path)


def _machine(path: str) -> Machine:
    from planner.spec.load import load_machine

    return load_machine(path)


def _plan(path: str) -> Plan:
    from planner.plan_file import load_plan

    return load_plan(path)


def _solve(
    operator: Operator,
    machine: Machine,
    objective: str,
    tiles: Any,
    time_limit_s: float | None,
    workers: int | None,
    seed: int,
) -> Plan:
    from planner.tiling.solve import solve

    watch = _Watch()
    return watch.over(
        lambda: solve(
            operator,
            machine,
            objective=objective,
            tiles=tiles,
            time_limit_s=time_limit_s,
            workers=min(os.cpu_count() or 1, 8) if workers is None else workers,
            seed=seed,
            progress=watch.seen,
        )
    )


class _Watch:
    """Tells on stderr how far a solve is, about once a second from the first second on."""

    def __init__(self) -> None:
        self.latest: Progress | None = None
        self.console = Console(stderr=True, highlight=False)

    def seen(self, progress: Progress) -> None:
        """Keep what the solver last said."""
        self.latest = progress

    def over(self, work: Callable[[], Plan]) -> Plan:
        """Run in a thread: Python heeds an interrupt only between its own instructions, and the solver may take long."""
        started = told = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            while not future.done():
                wait([future], timeout=0.1)
                if time.monotonic() - told >= 1 and not future.done():
                    told = time.monotonic()
                    self._tell(told - started)
            return future.result()

    def _tell(self, elapsed_s: float) -> None:
        what = "searching"
        if self.latest is not None:
            value, bound = self.latest.value, self.latest.bound
            what = f"best {value} B, bound {bound} B"
            if value is not None and value == bound:
                what = f"{value} B, proved minimal; looking for fewer transfers"
        self.console.print(f"{elapsed_s:6.1f} s  {what}")


_RULE = re.compile(r"(?:(?P<place>[^:]+):)?\s*(?P<dim>\w+)\s*(?P<sign>=|%|>=|<=)\s*(?P<size>\d+)")
_RULE_FIELD = {"=": "equals", "%": "multiple_of", ">=": "minimum", "<=": "maximum"}


def _demanding(operator: Operator, rules: list[str], order: str | None, no_spill: bool) -> Operator:
    """The operator with the command line's demands added to its own."""
    from planner.spec.library import checked
    from planner.spec.operator import Operator

    data = operator.model_dump(mode="json")
    demands = data["constraints"]
    for text in rules:
        match = _RULE.fullmatch(text.strip())
        if match is None:
            raise SpecError(f"--tile {text!r} is no demand; write PLACE:DIM=N, PLACE:DIM%N, DIM>=N or DIM<=N")
        place, field, size = match["place"] or "*", _RULE_FIELD[match["sign"]], int(match["size"])
        rule = demands["tiles"].setdefault(place, {}).setdefault(match["dim"], {})
        if rule.get(field) not in (None, size):
            raise SpecError(f"--tile {text!r} contradicts {field} {rule[field]}, demanded at the same place")
        rule[field] = size
    if order is not None:
        demands["order"] = [part.strip() for part in order.split(",")]
    if no_spill:
        demands["spill"] = False
    return checked(Operator, data).written_at(operator.origin)


def main() -> NoReturn:
    """Entry point: every failure is one message and an exit status, never a traceback."""
    signal.signal(signal.SIGINT, _interrupted)
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # names may be in any script, a terminal in one
    try:
        app()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except SpecError as error:
        code = _fail(f"error: {error}", EXIT_INPUT)
    except VerificationError as error:
        code = _fail(f"verification failed: {error}", EXIT_BUG)
    except OSError as error:
        code = _fail(f"error: cannot write the output: {error.strerror or error}", EXIT_INPUT)
    except Exception as error:
        code = _bug(error)
    sys.exit(code)


def _interrupted(number: int, frame: object) -> NoReturn:
    del number, frame
    if (plan_file := sys.modules.get("planner.plan_file")) is not None:
        for aside in tuple(plan_file.unfinished):
            with contextlib.suppress(OSError):
                os.unlink(aside)
    _fail("interrupted", EXIT_INTERRUPT)
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPT)  # at once: a solver thread would keep the process alive until it is done


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _bug(error: Exception) -> int:
    kind = "" if isinstance(error, InternalError) else f"{type(error).__name__}: "
    if os.environ.get("PLANNER_DEBUG"):
        traceback.print_exc()
    return _fail(
        f"internal error, a bug in the planner: {kind}{error}\nset PLANNER_DEBUG=1 for the traceback, and please report it "
        "with the two spec files",
        EXIT_BUG,
    )


if __name__ == "__main__":
    main()
