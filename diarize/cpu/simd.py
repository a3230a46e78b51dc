"""Vector code for numba: a small emitter of LLVM vector instructions and the width that suits this processor.

numba's own vectoriser cannot keep a tile of accumulators in registers. An `Emitter` writes such tiles directly as LLVM
vector operations inside an intrinsic; LLVM chooses the instructions (AVX-512, AVX2, NEON).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

F32 = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)


def _lanes_and_registers() -> tuple[int, int]:
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 32
    if features.get("avx2") and features.get("fma"):
        return 8, 16
    return 4, 32 if "aarch64" in llvm.get_default_triple() else 16


LANES, REGISTERS = _lanes_and_registers()
# Without the instruction LLVM would call the C library for every lane, a hundred times slower than two roundings.
HAS_FMA = REGISTERS == 32 or LANES == 8

# Constraint letter of a vector register in inline assembly.
_VECTOR_REGISTER = "w" if "aarch64" in llvm.get_default_triple() else "v" if LANES == 16 else "x"


class Emitter:
    """Emits float32 vector instructions of `lanes` lanes at the builder's position.

    Pointers are `float*`; offsets count float32 elements. Loads and stores assume 4-byte alignment only.
    """

    def __init__(self, builder: ir.IRBuilder, lanes: int = LANES) -> None:
        self.builder = builder
        self.lanes = lanes
        self.type = ir.VectorType(F32, lanes)

    def constant(self, value: float) -> ir.Constant:
        """`value` in every lane."""
        return ir.Constant(self.type, [float(value)] * self.lanes)

    def address(self, pointer: ir.Value, offset: ir.Value | int) -> ir.Value:
        """Pointer to element `offset`."""
        if isinstance(offset, int):
            offset = ir.Constant(I64, offset)
        return self.builder.gep(pointer, [offset])

    def load(self, pointer: ir.Value, offset: ir.Value | int = 0) -> ir.Value:
        """`lanes` adjacent elements from `offset` on."""
        value = self.builder.load(
            self.builder.bitcast(self.address(pointer, offset), self.type.as_pointer()), typ=self.type
        )
        value.align = 4
        return value

    def store(self, value: ir.Value, pointer: ir.Value, offset: ir.Value | int = 0) -> None:
        """Write `lanes` adjacent elements from `offset` on."""
        instruction = self.builder.store(
            value, self.builder.bitcast(self.address(pointer, offset), self.type.as_pointer())
        )
        instruction.align = 4

    def splat(self, scalar: ir.Value) -> ir.Value:
        """A float32 scalar in every lane."""
        undefined = ir.Constant(self.type, ir.Undefined)
        one = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(
            one, undefined, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        )

    def broadcast(self, pointer: ir.Value, offset: ir.Value | int = 0) -> ir.Value:
        """Element `offset` in every lane."""
        return self.splat(self.builder.load(self.address(pointer, offset), typ=F32))

    def prefetch(self, pointer: ir.Value, write: bool) -> None:
        """Ask for the cache line at `pointer` in the second-level cache, to be read or written soon."""
        byte = ir.IntType(8).as_pointer()
        signature = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = cgutils.get_or_insert_function(self.builder.module, signature, "llvm.prefetch.p0i8")
        address = self.builder.bitcast(pointer, byte)
        self.builder.call(function, [address, I32(int(write)), I32(2), I32(1)])

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, rounded once where the processor can."""
        return self._call("llvm.fma" if HAS_FMA else "llvm.fmuladd", a, b, c)

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger of a and b, lane by lane; b where either is NaN (one instruction on x86)."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b."""
        return self.builder.fadd(a, b)

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a - b."""
        return self.builder.fsub(a, b)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a * b."""
        return self.builder.fmul(a, b)

    def activate(self, value: ir.Value, activation: str) -> ir.Value:
        """`value` through "none", "relu" or "leaky" (slope 0.01)."""
        if activation == "none":
            return value
        if activation == "relu":
            return self.maximum(value, self.constant(0.0))
        if activation == "leaky":
            return self.maximum(value, self.mul(value, self.constant(0.01)))
        raise ValueError(f"unknown activation {activation!r}")

    def pin(self, index: ir.Value, *values: ir.Value) -> tuple[ir.Value, ...]:
        """The same index and vectors, which nothing that uses them may be computed before.

        An empty piece of assembly that claims to change them. Between the rows of a register tile it keeps LLVM from
        loading all rows first, which needs more registers than there are and spills the sums.
        """
        kinds = [I64] + [self.type] * len(values)
        outputs = ["=r"] + [f"={_VECTOR_REGISTER}"] * len(values)
        function = ir.FunctionType(ir.LiteralStructType(kinds), kinds)
        constraints = ",".join(outputs + [str(position) for position in range(len(kinds))])
        pinned = self.builder.call(ir.InlineAsm(function, "", constraints, side_effect=True), [index, *values])
        return tuple(self.builder.extract_value(pinned, position) for position in range(len(kinds)))

    def _call(self, name: str, *values: ir.Value) -> ir.Value:
        signature = ir.FunctionType(self.type, [self.type] * len(values))
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"{name}.v{self.lanes}f32")
        return self.builder.call(function, list(values))


class CountedLoop:
    """A loop over k = 0 .. count - 1 that carries vector values in registers.

    Enter with the initial values, use `.index` and `.values` in the body, call `.end(new_values)`; `.values` are then
    the results. `count` must be at least 1.
    """

    def __init__(self, builder: ir.IRBuilder, count: ir.Value, values: Sequence[ir.Value]) -> None:
        self._builder = builder
        self._count = count
        entry = builder.block
        self._body = builder.append_basic_block("loop")
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self.index = builder.phi(I64)
        self.index.add_incoming(ir.Constant(I64, 0), entry)
        self.values: list[ir.Value] = []
        for value in values:
            phi = builder.phi(value.type)
            phi.add_incoming(value, entry)
            self.values.append(phi)

    def end(self, values: Sequence[ir.Value]) -> None:
        """Close the body: `values` become the carried values of the next round, or the loop's results."""
        builder = self._builder
        following = builder.add(self.index, ir.Constant(I64, 1))
        after = builder.append_basic_block("after")
        latch = builder.block
        builder.cbranch(builder.icmp_signed("<", following, self._count), self._body, after)
        self.index.add_incoming(following, latch)
        for phi, value in zip(self.values, values, strict=True):
            phi.add_incoming(value, latch)
        builder.position_at_end(after)
        self.values = list(values)


def data_pointer(context: Any, builder: ir.IRBuilder, array_type: Any, array: ir.Value) -> ir.Value:
    """`float*` to the first element of a numba array value."""
    return context.make_array(array_type)(context, builder, value=array).data
