# mypy: disallow-untyped-defs=False
"""Inline-PTX intrinsics of Hopper GPUs (sm_90a): mbarriers, bulk and tensor copies, wgmma, register reallocation."""

from __future__ import annotations

from numba.cuda import types
from numba.cuda.extending import intrinsic

from .ptx_asm import INT, LocalArray, emit, emit_tied, global_address, mem_op, ptx_op, shared_address

wgmma_fence = ptx_op("wgmma_fence", "wgmma.fence.sync.aligned;", memory=True)
wgmma_commit = ptx_op("wgmma_commit", "wgmma.commit_group.sync.aligned;", memory=True)
wgmma_wait0 = ptx_op("wgmma_wait0", "wgmma.wait_group.sync.aligned 0;", memory=True)
wgmma_wait1 = ptx_op("wgmma_wait1", "wgmma.wait_group.sync.aligned 1;", memory=True)
fence_async = ptx_op("fence_async", "fence.proxy.async.shared::cta;", memory=True)
fence_mbar_init = ptx_op(
    "fence_mbar_init", "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;", memory=True
)

mbar_init = mem_op("mbar_init", "mbarrier.init.shared::cta.b64 [$0], $1;", "", "s", "r")
mbar_arrive = mem_op("mbar_arrive", "{.reg .b64 st; mbarrier.arrive.shared::cta.b64 st, [$0];}", "", "s")
mbar_expect_tx = mem_op(
    "mbar_expect_tx", "{.reg .b64 st; mbarrier.arrive.expect_tx.shared::cta.b64 st, [$0], $1;}", "", "s", "r"
)
mbar_wait = mem_op(
    "mbar_wait",
    "{.reg .pred p; W_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
    "@p bra D_${:uid}; bra W_${:uid}; D_${:uid}:}",
    "",
    "s",
    "r",
)

# Programmatic dependent launch: a kernel may start while the one before it ends. The first lets the next kernel start,
# the second waits until the kernel before this one has completed and its results can be read.
launch_dependents = ptx_op("launch_dependents", "griddepcontrol.launch_dependents;", memory=True)
wait_prerequisites = ptx_op("wait_prerequisites", "griddepcontrol.wait;", memory=True)


def make_setmaxnreg(count, increase):
    """Intrinsic that moves this warpgroup to `count` registers a thread."""
    verb = "inc" if increase else "dec"
    return ptx_op(f"setmaxnreg_{count}", f"setmaxnreg.{verb}.sync.aligned.u32 {count};", memory=True)


@intrinsic
def bulk_g2s(typingctx, shared, si, source, gi, barrier, bi, size):
    """Copy `size` bytes of source[gi..] to shared[si..]; the barrier at barrier[bi] counts them."""

    def codegen(context, builder, sig, args):
        t = sig.args
        operands = [
            shared_address(context, builder, t[0], args[0], args[1]),
            global_address(context, builder, t[2], args[2], args[3]),
            args[6],
            shared_address(context, builder, t[4], args[4], args[5]),
        ]
        asm = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
        emit(builder, asm, "", "rlrr", operands, True, True)
        return context.get_dummy_value()

    i32 = types.int32
    return types.void(shared, i32, source, types.int64, barrier, i32, i32), codegen


@intrinsic
def tma_load_4d(typingctx, shared, si, tensor_map, c, x, y, n, barrier, bi):
    """Copy the box of `tensor_map` at channel c, column x, row y, image n to shared[si..]; zeros outside the tensor."""

    def codegen(context, builder, sig, args):
        t = sig.args
        operands = [
            shared_address(context, builder, t[0], args[0], args[1]),
            global_address(context, builder, t[2], args[2], INT[64](0)),
            *args[3:7],
            shared_address(context, builder, t[7], args[7], args[8]),
        ]
        asm = (
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[$0], [$1, {$2, $3, $4, $5}], [$6];"
        )
        emit(builder, asm, "", "rlrrrrr", operands, True, True)
        return context.get_dummy_value()

    i = types.int32
    return types.void(shared, i, tensor_map, i, i, i, i, barrier, i), codegen


@intrinsic
def tma_prefetch_4d(typingctx, tensor_map, c, x, y, n):
    """Bring the box to the second-level cache."""

    def codegen(context, builder, sig, args):
        at = global_address(context, builder, sig.args[0], args[0], INT[64](0))
        asm = "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [$0, {$1, $2, $3, $4}];"
        emit(builder, asm, "", "lrrrr", [at, *args[1:]], True, True)
        return context.get_dummy_value()

    i = types.int32
    return types.void(tensor_map, i, i, i, i), codegen


def make_pin(count):
    """pin(acc): an empty statement that reads and writes all accumulators.

    After wgmma.wait_group it keeps the compiler from moving a use of an accumulator in front of the wait.
    """

    @intrinsic
    def pin(typingctx, acc):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for i, value in enumerate(emit_tied(builder, "", [local.load(i) for i in range(count)])):
                local.store(value, i)
            return context.get_dummy_value()

        return types.void(acc), codegen

    return pin


def make_wgmma_block(width, steps, row_bytes=128, fresh=False):
    """wgblock(acc, sm, da, db): a sequence of wgmma.m64n{width}k16, fp16 operands in shared memory, float32 sums.

    A step is (first accumulator, a_offset, b_offset); offsets are added to the descriptors, in 16-byte units. With
    `fresh` the first product overwrites the accumulators instead of adding. `row_bytes` is the swizzled row length;
    only the simulator needs it.
    """
    n = width // 2
    registers = ",".join(f"${i}" for i in range(n))

    def instruction(adds):
        scale = f"{{.reg .pred p; setp.ne.b32 p, {int(adds)}, 0; "
        asm = f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.f16.f16 "
        return scale + asm + f"{{{registers}}}, ${2 * n}, ${2 * n + 1}, p, 1, 1, 0, 0;}}"

    @intrinsic
    def wgblock(typingctx, acc, sm, da, db):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for number, (start, a_offset, b_offset) in enumerate(steps):
                where = range(start, start + n)
                a = builder.add(args[2], INT[64](a_offset))
                b = builder.add(args[3], INT[64](b_offset))
                adds = not fresh or number > 0
                values = emit_tied(builder, instruction(adds), [local.load(i) for i in where], (a, b), "ll")
                for i, value in zip(where, values, strict=True):
                    local.store(value, i)
            return context.get_dummy_value()

        return types.void(acc, sm, types.int64, types.int64), codegen

    return wgblock


def make_roll_rows(channels):
    """roll(first, second, products, bias, out): one step down the rows, n = channels / 2 values a row and thread.

    products (3 n) hold what an image row adds to the output rows before, at and after it:
    out = first + products[:n]; first = second + products[n:2n]; second = bias + products[2n:]. `bias` has the thread's
    channels, eight of each group of 32.
    """
    n = channels // 2

    @intrinsic
    def roll(typingctx, first, second, products, bias, out):
        def codegen(context, builder, sig, args):
            a, b, p, c, o = (LocalArray(context, builder, sig.args[i], args[i]) for i in range(5))
            for i in range(n):
                o.store(builder.fadd(a.load(i), p.load(i)), i)
                a.store(builder.fadd(b.load(i), p.load(n + i)), i)
                start = c.load((i // 16) * 8 + ((i % 16) // 4) * 2 + i % 2)
                b.store(builder.fadd(start, p.load(2 * n + i)), i)
            return context.get_dummy_value()

        return types.void(first, second, products, bias, out), codegen

    return roll


__all__ = [name for name in dir() if not name.startswith("_")]
__all__ = [n for n in __all__ if n not in {"INT", "annotations", "intrinsic", "ir", "types"}]
