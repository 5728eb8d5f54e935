"""The judge: exhaustive search over every order of attach points and every integer tile chain, visit by visit.

Shares no code with the planner. Operators and machines are plain dicts in the form of the spec files (generic operators,
capacities in bytes), so that a disagreement can be written down as spec files at once.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from typing import Any

BYTES = {"int8": 1, "uint8": 1, "int16": 2, "int32": 4, "float32": 4, "int64": 8}


def parse_index(text: str) -> tuple[dict[str, int], int]:
    """`"2*p + r - 1"` -> ({"p": 2, "r": 1}, -1)."""
    terms: dict[str, int] = {}
    offset = 0
    for sign, body in re.findall(r"([+-]?)\s*([^+-]+)", str(text)):
        scale = -1 if sign == "-" else 1
        for part in body.strip().split("*"):
            if part.strip().isdigit():
                scale *= int(part)
        names = [p.strip() for p in body.split("*") if not p.strip().isdigit()]
        if names:
            terms[names[0]] = terms.get(names[0], 0) + scale
        else:
            offset += scale
    return terms, offset


@dataclass
class Buf:
    operand: str
    role: str
    memory: str
    top: bool
    shape: list[int]
    index: list[tuple[dict[str, int], int]]
    slot: int
    final: int
    copies: int
    spill: bool

    @property
    def place(self) -> str:
        return f"{self.operand}@{self.memory}"


@dataclass
class Judge:
    """One problem, ready to be searched."""

    operator: dict[str, Any]
    machine: dict[str, Any]
    divisors: bool = False
    bufs: list[Buf] = field(default_factory=list)
    cache: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dims: dict[str, int] = self.operator["dims"]
        memories = self.machine["memories"]
        demands = self.operator.get("constraints", {})
        self.rules: dict[str, dict[str, Any]] = demands.get("tiles", {})
        self.order: list[str] = list(demands.get("order", ()))
        self.capacity = {m["name"]: m.get("capacity") for m in memories}
        self.alignment = {m["name"]: m.get("alignment", 1) for m in memories}
        output = next(o for o in self.operator["operands"].values() if o["role"] == "output")
        inside = {d for i in output["index"] for d in parse_index(i)[0]}
        self.folding = [d for d in self.dims if d not in inside]
        for name, o in self.operator["operands"].items():
            first = True
            for m in memories[1:]:
                holds = m.get("holds")
                if holds is not None and name not in holds and o["role"] not in holds:
                    continue
                slot = BYTES[self.operator["accumulate"] if o["role"] == "output" else o["dtype"]]
                self.bufs.append(
                    Buf(
                        name,
                        o["role"],
                        m["name"],
                        first,
                        o["shape"],
                        [parse_index(i) for i in o["index"]],
                        slot,
                        BYTES[o["dtype"]],
                        2 if m.get("double_buffered") else 1,
                        m.get("spill", True) and demands.get("spill", True),
                    )
                )
                first = False

    # One mapping ----------------------------------------------------------------------------------------------------

    def leaves(self, dim: str, chain: tuple[int, ...]) -> list[tuple[int, int]]:
        """(start, size) of every piece of a dim under nested tiles."""
        key = (dim, chain)
        if key not in self.cache:
            pieces = [(0, self.dims[dim])]
            for tile in chain:
                pieces = [(s + i, min(tile, n - i)) for s, n in pieces for i in range(0, n, tile)]
            self.cache[key] = pieces
        return self.cache[key]

    def points(self, buf: Buf, box: dict[str, tuple[int, int]]) -> int:
        """Lattice points of one visit's real box that lie inside the operand."""
        total = 1
        for (terms, offset), size in zip(buf.index, buf.shape, strict=True):
            step = math.gcd(*[abs(a) for d, a in terms.items() if box[d][1] > 1]) or 1
            low = offset + sum(a * (box[d][0] if a > 0 else box[d][0] + box[d][1] - 1) for d, a in terms.items())
            high = offset + sum(a * (box[d][0] if a < 0 else box[d][0] + box[d][1] - 1) for d, a in terms.items())
            total *= sum(0 <= i < size for i in range(low, high + 1, step))
        return total

    def footprint(self, buf: Buf, tile: dict[str, int]) -> int:
        points = 1
        for terms, _ in buf.index:
            step = math.gcd(*[abs(a) for d, a in terms.items() if tile[d] > 1]) or 1
            points *= sum(abs(a) * (tile[d] - 1) for d, a in terms.items()) // step + 1
        return points * buf.slot * buf.copies

    def cost(self, buf: Buf, chains: dict[str, tuple[int, ...]]) -> tuple[int, int]:
        """(bytes between the buffer and its parent, transfers) over all visits."""
        key = (buf.operand, buf.role, tuple(chains.items()))
        if key in self.cache:
            return self.cache[key]
        dims = [d for d in self.dims if not (buf.role == "bias" and d in self.folding)]
        used = [d for d in dims if any(d in terms for terms, _ in buf.index)]
        repeats = math.prod(len(self.leaves(d, chains[d])) for d in dims if d not in used)
        moved = 0
        for visit in itertools.product(*(self.leaves(d, chains[d]) for d in used)):
            moved += self.points(buf, dict(zip(used, visit, strict=True)))
        visits = repeats * math.prod(len(self.leaves(d, chains[d])) for d in used)
        if buf.role == "output":
            elements = math.prod(buf.shape)
            first = math.prod(len(self.leaves(d, chains[d])) for d in self.dims if d not in self.folding)
            result = (
                2 * (moved * repeats - elements) * buf.slot + elements * buf.final,
                visits + visits - first,
            )
        else:
            result = (moved * repeats * buf.final, visits)
        self.cache[key] = result
        return result

    def packed(self, sizes: list[int], alignment: int) -> int:
        """Smallest end of the last byte over all orders of addresses."""
        best = None
        for order in itertools.permutations(sizes):
            end = 0
            for size in order:
                end = -(-end // alignment) * alignment + size
            best = end if best is None else min(best, end)
        return best or 0

    def allows(self, buf: Buf, dim: str, size: int) -> bool:
        """Whether the user's rules allow a tile size in a buffer."""
        for place in ("*", buf.operand, buf.memory, buf.place):
            rule = self.rules.get(place, {}).get(dim, {})
            rule = {"equals": rule} if isinstance(rule, int) else rule
            if size not in range(rule.get("minimum", 1), rule.get("maximum", size) + 1):
                return False
            if size % rule.get("multiple_of", 1) or size != rule.get("equals", size):
                return False
        return True

    # All mappings ---------------------------------------------------------------------------------------------------

    def search(self) -> tuple[int, int, int] | None:
        """Least (traffic, transfers, footprint), or None if no mapping fits. `self.witness` is the nest's tiles."""
        self.best: tuple[int, int, int] | None = None
        self.witness: list[tuple[str, dict[str, int]]] = []
        self._place([], dict.fromkeys(self.dims, ()), dict(self.dims), {}, (0, 0, 0), list(range(len(self.bufs))))
        return self.best

    def _place(
        self,
        done: list[tuple[str, dict[str, int]]],
        chains: dict[str, tuple[int, ...]],
        tile: dict[str, int],
        held: dict[str, list[int]],
        cost: tuple[int, int, int],
        left: list[int],
    ) -> None:
        if self.best is not None and cost >= self.best:
            return
        if not left:
            self.best, self.witness = cost, list(done)
            return
        for i in left:
            buf = self.bufs[i]
            if any(self.bufs[j].operand == buf.operand and j < i for j in left):
                continue
            if buf.place in self.order and any(
                self.bufs[j].place in self.order[: self.order.index(buf.place)] for j in left
            ):
                continue
            rest = [j for j in left if j != i]
            for chosen in self._tiles(buf, tile):
                fp = self.footprint(buf, chosen)
                sizes = [*held.get(buf.memory, []), fp]
                if self.packed(sizes, self.alignment[buf.memory]) > self.capacity[buf.memory]:
                    continue
                longer = {
                    d: c if (c[-1] if c else self.dims[d]) == chosen[d] else (*c, chosen[d]) for d, c in chains.items()
                }
                if (
                    buf.role == "output"
                    and not buf.spill
                    and any(len(self.leaves(d, longer[d])) > 1 for d in self.folding)
                ):
                    continue
                moved, transfers = self.cost(buf, longer)
                total = (cost[0] + (moved if buf.top else 0), cost[1] + transfers, cost[2] + fp)
                step = (f"{buf.operand}@{buf.memory}", chosen)
                self._place([*done, step], longer, chosen, {**held, buf.memory: sizes}, total, rest)

    def _tiles(self, buf: Buf, tile: dict[str, int]) -> list[dict[str, int]]:
        choices = []
        for d, n in tile.items():
            sizes = range(n, 0, -1)
            choices.append([t for t in sizes if (not self.divisors or n % t == 0) and self.allows(buf, d, t)])
        return [dict(zip(tile, c, strict=True)) for c in itertools.product(*choices)]
