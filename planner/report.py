"""A plan in words: what the command line prints. Plain text, 100 columns at most, no colour needed to read it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planner.check import sites
from planner.plan import Attach, Loop, Plan
from planner.spec.operator import Operand, Operator


def size(count: int) -> str:
    """Bytes as people read them, exact if short: 32 KiB, 30624 B."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale and count % scale == 0:
            return f"{count // scale} {unit}"
    return f"{count} B"


def plan_text(plan: Plan) -> str:
    """The whole report."""
    if plan.status == "infeasible":
        return "\n".join(_infeasible(plan))
    if not plan.nest:
        where = f"{plan.operator.name} on {plan.machine.name}"
        return f"{where}: no plan within the time limit; nothing is proved about whether one exists"
    sections = [_status(plan), _nest(plan), _scopes(plan), _traffic(plan)]
    return "\n\n".join("\n".join(section) for section in sections)


def _status(plan: Plan) -> Iterator[str]:
    value, bound = plan.objective.value, plan.objective.bound
    yield f"{plan.operator.name} on {plan.machine.name}: {plan.status}"
    if plan.status == "optimal":
        ties = "of these it has the fewest transfers" if plan.ties_proved else "fewer transfers may be possible"
        yield f"{plan.objective.name} {value} B, proved minimal (bound {bound} B); {ties}: {plan.transfers}"
    else:
        yield f"{plan.objective.name} {value} B, bound {bound} B, gap {100 * (plan.gap or 0):.2f} %; time ran out"
    if plan.statistics.wall_s:
        yield f"solved in {plan.statistics.wall_s:.2f} s"


def _nest(plan: Plan) -> Iterator[str]:
    yield "nest (outermost first; [..] marks where a buffer is filled)"
    tiles, depth = dict(plan.operator.dims), 0
    for entry in plan.nest:
        pad = "  " * depth
        match entry:
            case Loop():
                times = -(-tiles[entry.dim] // entry.tile)
                tail = tiles[entry.dim] % entry.tile
                ragged = f", the last {tail}" if tail else ""
                yield f"  {pad}for {entry.dim}: {tiles[entry.dim]} in {times} tiles of {entry.tile}{ragged}"
                tiles[entry.dim] = entry.tile
                depth += 1
            case Attach():
                shape = " x ".join(map(str, plan.buffer(entry.operand, entry.memory).shape))
                yield f"  {pad}[{entry.operand} in {entry.memory}: {shape}]"
    rest = ", ".join(f"{d} {n}" for d, n in tiles.items() if n > 1)
    yield f"  {'  ' * depth}compute {rest or 'one point'}"


def _scopes(plan: Plan) -> Iterator[str]:
    yield f"{'scope':<16}{'used':>12}{'capacity':>12}{'':>7}  buffers at addresses"
    for scope in plan.machine.scopes:
        inside = sorted((b for b in plan.buffers if b.memory == scope.name), key=lambda b: b.offset_bytes)
        used = max((b.offset_bytes + b.size_bytes for b in inside), default=0)
        capacity = scope.capacity or 1
        places = [
            f"{b.operand} {b.offset_bytes}..{b.offset_bytes + b.size_bytes}"
            + (f" ({b.copies} copies)" if b.copies > 1 else "")
            for b in inside
        ]
        yield f"{scope.name:<16}{used:>10} B{capacity:>10} B{100 * used / capacity:>6.1f}%  {', '.join(places)}"


def _traffic(plan: Plan) -> Iterator[str]:
    total = sum(t.read_bytes + t.written_bytes for t in plan.traffic.values())
    floor = sum(compulsory_bytes(plan.operator, name) for name in plan.traffic)
    n = max(10, len(str(total)) + 1)
    yield f"{'operand':<16}{'read':>{n + 2}}{'written':>{n + 2}}{'compulsory':>{n + 2}}{'times':>8}"
    for name, traffic in plan.traffic.items():
        least = compulsory_bytes(plan.operator, name)
        moved = traffic.read_bytes + traffic.written_bytes
        figures = f"{traffic.read_bytes:>{n}} B{traffic.written_bytes:>{n}} B{least:>{n}} B"
        yield f"{name:<16}{figures}{moved / max(least, 1):>8.2f}"
    yield f"{'all':<16}{total:>{2 * n + 2}} B{floor:>{n}} B{total / max(floor, 1):>8.2f}"
    if inner := [k for k in plan.links if k.parent != plan.machine.backing.name]:
        yield ""
        yield "between scopes, not part of the objective: " + "; ".join(
            f"{k.operand} {k.parent} to {k.memory} {k.read_bytes + k.written_bytes} B" for k in inner
        )


def compulsory_bytes(operator: Operator, name: str) -> int:
    """Bytes that any plan must move: each element that is touched at all, once, in the operand's own dtype."""
    operand = operator.operands[name]
    if operand.role == "output":
        return prod(operand.shape) * operand.element_bytes
    return _touched(operator, operand) * operand.element_bytes


def _touched(operator: Operator, operand: Operand) -> int:
    """Elements inside the shape that some point of the operator reads; axes are independent unless they share dims."""
    touched = 1
    for index, extent in zip(operand.index, operand.shape, strict=True):
        reached = {index.offset}
        for dim, a in index.terms:
            if not (len(index.terms) == 1 and a == 1):
                reached = {i + a * t for i in reached for t in range(operator.dims[dim])}
        if len(index.terms) == 1 and index.terms[0][1] == 1:
            low = max(index.offset, 0)
            touched *= max(0, min(index.offset + operator.dims[index.terms[0][0]], extent) - low)
        else:
            touched *= sum(0 <= i < extent for i in reached)
    return touched


def _infeasible(plan: Plan) -> Iterator[str]:
    yield f"{plan.operator.name} on {plan.machine.name}: infeasible, proved: no plan exists"
    for short in plan.shortages:
        over = short.needed_bytes - short.capacity_bytes
        yield (
            f"  {short.memory}: its smallest tiles need {short.needed_bytes} B, it has {short.capacity_bytes} B: "
            f"{over} B too much"
        )
        for operand, count in short.smallest_tiles.items():
            yield f"    {operand}: {count} B"
        if gaps := short.needed_bytes - sum(short.smallest_tiles.values()):
            yield f"    alignment to {plan.machine.memory(short.memory).alignment} B: {gaps} B"
        yield f"    {short.remedy}"
    if plan.conflicts:
        yield "  every scope could hold its smallest tiles, but these demands leave no plan; relax one:"
        yield from (f"    {conflict}" for conflict in plan.conflicts)


def explain_text(plan: Plan) -> str:
    """Why the plan is as it is: what is proved, what each operand is fetched again for, and how full each scope is."""
    if not plan.nest:
        return plan_text(plan)
    lines = [*_status(plan), "", "why each operand moves what it moves:"]
    for site in sites(plan.operator, plan.nest):
        link = next(k for k in plan.links if (k.operand, k.memory) == (site.attach.operand, site.attach.memory))
        if link.parent == plan.machine.backing.name:
            lines.append(f"  {_because(plan, site.attach.operand, site.loops)}")
    lines += ["", "what limits it:"]
    for scope in plan.machine.scopes:
        inside = [b for b in plan.buffers if b.memory == scope.name]
        used = max((b.offset_bytes + b.size_bytes for b in inside), default=0)
        lines.append(f"  {scope.name}: {used} of {scope.capacity} B used, {(scope.capacity or 0) - used} B free")
    return "\n".join(lines)


def _because(plan: Plan, name: str, loops: tuple[Loop, ...]) -> str:
    operator = plan.operator
    operand, traffic = operator.operands[name], plan.traffic[name]
    moved, least = traffic.read_bytes + traffic.written_bytes, compulsory_bytes(operator, name)
    if moved == least:
        return f"{name}: {moved} B, each byte once: the least there is"
    repeats = list(dict.fromkeys(k.dim for k in loops if k.dim not in operand.dims))
    if operand.role == "output":
        return f"{name}: {moved} B, {least} B of results; partial sums leave and return for each tile of {', '.join(repeats)}"
    reasons: list[str] = []
    if repeats and operand.role != "bias":
        reasons.append(f"loops over {', '.join(repeats)} stand above it and fetch it again")
    if operand.role == "bias":
        reasons.append("loops of the output stand above it and fetch it again")
    shared = [i for i in operand.index if len(i.terms) > 1 and any(k.dim in i.dims for k in loops)]
    if shared:
        reasons.append(f"neighbouring tiles overlap in {', '.join(str(i) for i in shared)}")
    return (
        f"{name}: {moved} B, {moved / max(least, 1):.2f} times its {least} B: {' and '.join(reasons) or 'ragged tiles'}"
    )
