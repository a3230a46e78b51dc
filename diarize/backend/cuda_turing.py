"""Rewrites the kernels' inline PTX for GPUs before compute capability 8.0 (Turing): between numba and the assembler.

Only what `kernels/ptx_...` emits as inline assembly is looked at; the rest comes from NVVM, which was told the target.
Every statement must be one that is known: those below are replaced, those in `_PLAIN` are kept, any other is refused.

- A product of 16 columns becomes two of 8 over the halves of its fragments, summed in one after the other.
- An asynchronous copy becomes a load and a shared store, done at once; commits and waits vanish. A kernel that is right
  with the copy done at the latest time allowed (its wait) is right with it done at the earliest (its issue), since its
  target must be free by then. The byte count is 16 or 0, as `cp_async16` demands.
- Packed conversions and maxima that keep NaN become what they are made of. The sign of a zero maximum of halves may
  differ: kernels take it of magnitudes only.

References
----------
PTX ISA 9.0, "Target ISA notes" of mma, cp.async, cvt and max; fragment layouts of mma.m16n8k8 and mma.m16n8k16.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import BackendError

TENSOR_CORES = (8, 0)
"""Compute capability from which PTX needs no rewriting."""

_BLOCK = re.compile(r"(?<=// begin inline asm\n)(.*?)(?=\n[ \t]*// end inline asm)", re.S)

# A register of the surrounding text or a number, not a register of the statement's own scope.
_WORD = r"%[\w$]+|-?\d\w*"
_FOUR = rf"\{{\s*({_WORD}),\s*({_WORD}),\s*({_WORD}),\s*({_WORD})\s*\}}"
_TWO = rf"\{{\s*({_WORD}),\s*({_WORD})\s*\}}"
_COMMA = r"\s*,\s*"

_HALF_PRODUCT = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"


def _product(d0: str, d1: str, d2: str, d3: str, *rest: str) -> str:
    a0, a1, a2, a3, b0, b1, c0, c1, c2, c3 = rest
    # A register of its own for the sum between: the result may share registers with the second half's operands.
    return (
        "{.reg .f32 t0,t1,t2,t3; "
        f"{_HALF_PRODUCT} {{t0,t1,t2,t3}},{{{a0},{a1}}},{{{b0}}},{{{c0},{c1},{c2},{c3}}}; "
        f"{_HALF_PRODUCT} {{{d0},{d1},{d2},{d3}}},{{{a2},{a3}}},{{{b1}}},{{t0,t1,t2,t3}};}}"
    )


def _copy(shared: str, source: str, count: str) -> str:
    return (
        "{.reg .pred p; .reg .b32 t0,t1,t2,t3; "
        f"setp.ne.s32 p, {count}, 0; mov.b32 t0, 0; mov.b32 t1, 0; mov.b32 t2, 0; mov.b32 t3, 0; "
        f"@p ld.global.cg.v4.b32 {{t0,t1,t2,t3}}, [{source}]; st.shared.v4.b32 [{shared}], {{t0,t1,t2,t3}};}}"
    )


def _pack(out: str, high: str, low: str) -> str:
    return f"{{.reg .b16 l,h; cvt.rn.f16.f32 l, {low}; cvt.rn.f16.f32 h, {high}; mov.b32 {out}, {{l,h}};}}"


def _pack_relu(out: str, high: str, low: str) -> str:
    # NaN is not below zero, so it stays.
    return (
        "{.reg .b16 l,h; .reg .f32 u,v; .reg .pred p,q; "
        f"setp.le.f32 p, {low}, 0f00000000; setp.le.f32 q, {high}, 0f00000000; "
        f"selp.f32 u, 0f00000000, {low}, p; selp.f32 v, 0f00000000, {high}, q; "
        f"cvt.rn.f16.f32 l, u; cvt.rn.f16.f32 h, v; mov.b32 {out}, {{l,h}};}}"
    )


def _half_maximum(out: str, x: str, y: str) -> str:
    return (
        "{.reg .pred p,q; .reg .b16 xl,xh,yl,yh,n; mov.b16 n, 0x7FFF; "
        f"mov.b32 {{xl,xh}}, {x}; mov.b32 {{yl,yh}}, {y}; "
        f"setp.gt.f16x2 p|q, {x}, {y}; selp.b16 xl, xl, yl, p; selp.b16 xh, xh, yh, q; "
        f"setp.nan.f16x2 p|q, {x}, {y}; selp.b16 xl, n, xl, p; selp.b16 xh, n, xh, q; mov.b32 {out}, {{xl,xh}};}}"
    )


def _maximum(out: str, x: str, y: str) -> str:
    return (
        "{.reg .pred p; .reg .f32 t; "
        f"setp.nan.f32 p, {x}, {y}; max.f32 t, {x}, {y}; selp.f32 {out}, 0f7FFFFFFF, t, p;}}"
    )


def _nothing() -> str:
    return ""


def _three(name: str) -> str:
    return re.escape(name) + rf"\s+({_WORD}){_COMMA}({_WORD}){_COMMA}({_WORD})"


# Statements without their semicolon, and what they become.
_REWRITTEN: list[tuple[str, Callable[..., str]]] = [
    (
        rf"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32\s+{_FOUR}{_COMMA}{_FOUR}{_COMMA}{_TWO}{_COMMA}{_FOUR}",
        _product,
    ),
    (rf"cp\.async\.cg\.shared\.global\s+\[({_WORD})\]{_COMMA}\[({_WORD})\]{_COMMA}16{_COMMA}({_WORD})", _copy),
    (r"cp\.async\.commit_group", _nothing),
    (r"cp\.async\.wait_group\s+\d+", _nothing),
    (_three("cvt.rn.f16x2.f32"), _pack),
    (_three("cvt.rn.relu.f16x2.f32"), _pack_relu),
    (_three("max.NaN.f16x2"), _half_maximum),
    (_three("max.NaN.f32"), _maximum),
]
_RULES = [(re.compile(pattern), rewrite) for pattern, rewrite in _REWRITTEN]

# Opcodes that compute capability 7.5 has in exactly this form, types included.
_PLAIN = re.compile(
    r"mov\.([bsu](16|32|64)|f32)"
    r"|ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16"
    r"|ld\.(global|shared|global\.nc|global\.nc\.L1::no_allocate)(\.v[24])?\.(b32|f32)"
    r"|st\.(global|shared)(\.v[24])?\.(b32|f32)"
    r"|cvt\.(f32\.f16|rn\.f16\.f32)|fma\.rn\.(f32|f16x2)|(min|max)\.f32|sqrt\.rn\.f32"
    r"|(ex2|rcp)\.approx\.ftz\.f32|tanh\.approx\.f32"
    r"|setp\.ne\.s32|bar\.(sync|arrive|warp\.sync)|shfl\.sync\.idx\.b32"
)
_STATEMENT = re.compile(r"(?:@!?[%\w]+\s+)?(?P<opcode>[a-z][\w.:]*)(?:\s.*)?", re.S)
_DECLARATION = re.compile(r"\.reg\s+\.\w+\s+[\w,\s]+")


def needs_lowering(capability: tuple[int, int]) -> bool:
    """Whether kernels for this compute capability are rewritten."""
    return capability < TENSOR_CORES


def lower(ptx: str, name: str) -> str:
    """PTX text whose inline assembly compute capability 7.5 has; `name` is the kernel's, for messages.

    Raises
    ------
    BackendError
        A statement of the inline assembly is not one of those that this module knows.
    """
    return _BLOCK.sub(lambda match: _lower_block(match[1], name), ptx)


def _lower_block(text: str, name: str) -> str:
    body = text.strip()
    scoped = body.startswith("{") and body.endswith("}")
    *statements, rest = (body[1:-1] if scoped else body).split(";")
    if rest.strip():
        raise _unknown(rest, name)
    out = " ".join(filter(None, (_lower_statement(statement.strip(), name) for statement in statements)))
    return f"{{{out}}}" if scoped else out


def _lower_statement(statement: str, name: str) -> str:
    for pattern, rewrite in _RULES:
        match = pattern.fullmatch(statement)
        if match:
            return rewrite(*match.groups())
    match = _STATEMENT.fullmatch(statement)
    if not _DECLARATION.fullmatch(statement) and (match is None or not _PLAIN.fullmatch(match["opcode"])):
        raise _unknown(statement, name)
    return statement + ";"


def _unknown(statement: str, name: str) -> BackendError:
    return BackendError(
        f"kernel {name} has the instruction {statement.strip()!r}, for which there is no form for compute capability "
        "7.5; choose a kernel that is made for it"
    )
