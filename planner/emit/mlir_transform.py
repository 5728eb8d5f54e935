"""Kernel -> MLIR's transform dialect: the operator as one `linalg.generic`, and a script that tiles it as planned.

The payload is the reduction alone, on memrefs: inputs already padded, accumulators already started, no epilogue. The script
has the plan's tile sizes and loop order, one step a band of loops; where buffers are filled is said in comments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.emit.mlir import conversion, operation, spelled_name, type_of
from planner.emit.names import Names, words
from planner.nest.ir import For, Kernel, Visit, spine


def emit(kernel: Kernel) -> str:
    """A module with the payload and `@__transform_main`, for MLIR's transform interpreter."""
    return "\n".join(_Script(kernel).module()) + "\n"


@dataclass(slots=True)
class _Script:
    kernel: Kernel

    def module(self) -> Iterator[str]:
        operator = self.kernel.operator
        dims = [f"d{i} = {words(d)} {n}" for i, (d, n) in enumerate(operator.dims.items())]
        yield f"// {words(operator.name)}: {', '.join(dims)}"
        yield "// payload: the reduction, on padded inputs and started accumulators"
        yield "module attributes {transform.with_named_sequence} {"
        yield from (f"  {line}" for line in self._payload())
        yield ""
        yield from (f"  {line}" for line in self._sequence())
        yield "}"

    # The operator -----------------------------------------------------------------------------------------------------

    def _payload(self) -> Iterator[str]:
        operator, names = self.kernel.operator, Names(set(), spelled_name)
        function = names.new(operator.name)
        arguments = {n: names.new(n) for n in (*operator.factors, operator.output_name)}
        types = {n: self._type(n) for n in arguments}
        # linalg reads the loops' extents off operands: a dim that is nowhere alone needs one that has it.
        hidden = [d for d in operator.dims if not self._alone(d)]
        window, window_type = names.new("window"), f"memref<{'x'.join(str(operator.dims[d]) for d in hidden)}xi8>"
        inputs = [f"%{arguments[n]}" for n in operator.factors]
        input_types = [types[n] for n in operator.factors]
        maps = [self._map(n) for n in operator.factors]
        parameters = [f"%{arguments[n]}: {types[n]}" for n in operator.factors]
        if hidden:
            inputs.append(f"%{window}")
            input_types.append(window_type)
            maps.append(f"affine_map<({self._dims()}) -> ({', '.join(f'd{self._number(d)}' for d in hidden)})>")
            parameters.append(f"%{window}: {window_type}")
        out = operator.output_name
        maps.append(self._map(out))
        parameters.append(f"%{arguments[out]}: {types[out]}")
        kinds = ['"reduction"' if d in operator.reduction_dims else '"parallel"' for d in operator.dims]
        yield f"func.func @{function}({', '.join(parameters)}) attributes {{llvm.emit_c_interface}} {{"
        yield "  linalg.generic {"
        yield "    indexing_maps = ["
        yield from (f"      {m}{',' if m is not maps[-1] else ''}" for m in maps)
        yield "    ],"
        yield f"    iterator_types = [{', '.join(kinds)}]"
        yield f"  }} ins({', '.join(inputs)} : {', '.join(input_types)}) outs(%{arguments[out]} : {types[out]}) {{"
        elements = [f"%x{i}: {type_of(o.dtype)}" for i, o in enumerate(operator.factors.values())]
        if hidden:
            elements.append("%unused: i8")
        yield f"  ^bb0({', '.join([*elements, f'%sum: {type_of(operator.accumulate)}'])}):"
        yield from (f"    {line}" for line in self._body())
        yield "  }"
        yield "  return"
        yield "}"

    def _body(self) -> Iterator[str]:
        operator = self.kernel.operator
        dtype, kind = operator.accumulate, type_of(operator.accumulate)
        wide: list[str] = []
        for i, o in enumerate(operator.factors.values()):
            if type_of(o.dtype) == kind:
                wide.append(f"%x{i}")
                continue
            yield f"%w{i} = arith.{conversion(o.dtype, dtype)} %x{i} : {type_of(o.dtype)} to {kind}"
            wide.append(f"%w{i}")
        value = wide[0]
        for i, other in enumerate(wide[1:]):
            combine = operation("multiply" if operator.combine == "multiply" else "add", dtype)
            yield f"%p{i} = arith.{combine} {value}, {other} : {kind}"
            value = f"%p{i}"
        fold = operation("max" if operator.reduce == "max" else "add", dtype)
        yield f"%folded = arith.{fold} %sum, {value} : {kind}"
        yield f"linalg.yield %folded : {kind}"

    def _number(self, dim: str) -> int:
        return list(self.kernel.operator.dims).index(dim)

    def _dims(self) -> str:
        return ", ".join(f"d{i}" for i in range(len(self.kernel.operator.dims)))

    def _alone(self, dim: str) -> bool:
        """Whether some axis of an operand is this dim and nothing else."""
        operator = self.kernel.operator
        operands = [*operator.factors.values(), operator.output]
        return any(axis.terms == ((dim, 1),) and axis.offset == 0 for o in operands for axis in o.index)

    def _shape(self, name: str) -> list[int]:
        """Extents of an operand once it is padded: all that is ever read, and no less than the operand."""
        operator = self.kernel.operator
        shape, margins = operator.operands[name].shape, operator.margins(name)
        return [before + size + behind for size, (before, behind) in zip(shape, margins, strict=True)]

    def _type(self, name: str) -> str:
        operator = self.kernel.operator
        dtype = operator.accumulate if name == operator.output_name else operator.operands[name].dtype
        return f"memref<{'x'.join(map(str, self._shape(name)))}x{type_of(dtype)}>"

    def _map(self, name: str) -> str:
        operator = self.kernel.operator
        texts: list[str] = []
        for axis, (before, _) in zip(operator.operands[name].index, operator.margins(name), strict=True):
            shift = axis.offset + before
            parts = [f"d{self._number(d)}" + (f" * {a}" if a != 1 else "") for d, a in axis.terms]
            texts.append(" + ".join([*parts, *([str(shift)] if shift or not parts else [])]))
        return f"affine_map<({self._dims()}) -> ({', '.join(texts)})>"

    # The script -------------------------------------------------------------------------------------------------------

    def _sequence(self) -> Iterator[str]:
        any_op = "!transform.any_op"
        yield f"transform.named_sequence @__transform_main(%module: {any_op} {{transform.readonly}}) {{"
        yield f'  %tiled_0 = transform.structured.match ops{{["linalg.generic"]}} in %module : ({any_op}) -> {any_op}'
        dims = list(self.kernel.operator.dims)
        count = 0
        for band in self._bands():
            for entry in band:
                if isinstance(entry, Visit):
                    yield f"  // filled here: {words(entry.buffer)}"
            tiles = {entry.dim: entry.tile for entry in band if isinstance(entry, For)}
            if not tiles:
                continue
            sizes = [tiles.get(d, 0) for d in dims]
            order = [dims.index(d) for d in (*tiles, *(d for d in dims if d not in tiles))]
            results = ", ".join([any_op] * (len(tiles) + 1))
            yield f"  %tiled_{count + 1}, %loops_{count}:{len(tiles)} = transform.structured.tile_using_for %tiled_{count}"
            yield f"    tile_sizes {sizes} interchange = {order}"
            yield f"    : ({any_op}) -> ({results})"
            count += 1
        yield "  transform.yield"
        yield "}"

    def _bands(self) -> Iterator[list[For | Visit]]:
        """Loops that follow each other, each dim once, then the visits below them."""
        band: list[For | Visit] = []
        size = dict(self.kernel.operator.dims)
        for entry in spine(self.kernel.body):
            if isinstance(entry, Visit):
                if band and isinstance(band[0], For):
                    yield band
                    band = []
                band.append(entry)
                continue
            if entry.tile >= size[entry.dim]:
                continue
            size[entry.dim] = entry.tile
            if band and (isinstance(band[0], Visit) or any(isinstance(e, For) and e.dim == entry.dim for e in band)):
                yield band
                band = []
            band.append(entry)
        yield band
