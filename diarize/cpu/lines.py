"""Vector moves and prefetches that numba cannot express: one vector copied or cleared, cache lines asked for ahead."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .simd import I64, CountedLoop, Emitter, data_pointer

LINE = 16
"""Float32 elements in a cache line of 64 bytes."""


@intrinsic
def copy_vector(typingctx, source, start, target, to):  # type: ignore[no-untyped-def]
    """target[to : to + LANES] = source[start : start + LANES]."""
    signature = types.void(source, types.int64, target, types.int64)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        source, target = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 2))
        emit.store(emit.load(source, args[1]), target, args[3])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def clear_vector(typingctx, target, to):  # type: ignore[no-untyped-def]
    """target[to : to + LANES] = 0."""
    signature = types.void(target, types.int64)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        emit.store(emit.constant(0.0), data_pointer(context, builder, signature.args[0], args[0]), args[1])
        return context.get_dummy_value()

    return signature, codegen


def make_prefetch(write: bool) -> Any:
    """Intrinsic (array, start, lines) that asks for `lines` cache lines from array[start] on, read or written soon.

    Bind it at module level: see `gemm.make_tile`. Harmless past the array's end.
    """

    @intrinsic
    def prefetch(typingctx, array, start, lines):  # type: ignore[no-untyped-def]
        signature = types.void(array, types.int64, types.int64)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            first = emit.address(data_pointer(context, builder, signature.args[0], args[0]), args[1])
            loop = CountedLoop(builder, args[2], [])
            emit.prefetch(emit.address(first, builder.mul(loop.index, ir.Constant(I64, LINE))), write)
            loop.end([])
            return context.get_dummy_value()

        return signature, codegen

    return prefetch
