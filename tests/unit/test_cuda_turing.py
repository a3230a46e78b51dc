"""Inline PTX rewritten for compute capability 7.5: every form that occurs, and refusal of what is not known."""

from __future__ import annotations

import re

import pytest

from diarize import registry
from diarize.backend.cuda_turing import lower, needs_lowering
from diarize.errors import BackendError
from diarize.recipe import Key
from diarize.recipe_lookup import look_up


def block(*statements: str) -> str:
    """PTX text with each statement as NVVM prints inline assembly, between ordinary instructions."""
    text = "\tmov.u32 \t%r1, %tid.x;\n"
    for statement in statements:
        text += f"\t// begin inline asm\n\t{statement}\n\t// end inline asm\n"
    return text + "\tmax.NaN.f32 \t%f9, %f1, %f2;\n"


def inline(ptx: str) -> str:
    """What stands between the marks, in one line."""
    return " ".join(re.findall(r"begin inline asm\n(.*?)\n?\s*// end inline asm", ptx, re.S)).replace("\t", "").strip()


def lowered(statement: str) -> str:
    return inline(lower(block(statement), "k"))


def test_only_old_gpus_need_it() -> None:
    assert needs_lowering((7, 5))
    assert not needs_lowering((8, 0))


def test_a_product_becomes_two_over_halves_of_its_fragments() -> None:
    got = lowered(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%f1,%f2,%f3,%f4},{%r1,%r2,%r3,%r4},{%r5,%r6},{%f5,%f6,%f7,%f8};"
    )
    small = r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.f16\.f16\.f32"
    first, second = re.findall(small + r" ([^;]*);", got)
    assert first == "{t0,t1,t2,t3},{%r1,%r2},{%r5},{%f5,%f6,%f7,%f8}"
    assert second == "{%f1,%f2,%f3,%f4},{%r3,%r4},{%r6},{t0,t1,t2,t3}"
    assert "k16" not in got


def test_a_copy_becomes_a_load_and_a_store() -> None:
    got = lowered("cp.async.cg.shared.global [%r5], [%rd7], 16, %r9;")
    statements = [s.strip() for s in got.strip("{}").split(";")]
    assert statements.index("setp.ne.s32 p, %r9, 0") < statements.index("mov.b32 t3, 0")
    # Zeros are what is stored where nothing is loaded.
    assert {f"mov.b32 t{i}, 0" for i in range(4)} <= set(statements)
    load = statements.index("@p ld.global.cg.v4.b32 {t0,t1,t2,t3}, [%rd7]")
    assert statements.index("mov.b32 t0, 0") < load
    assert statements[load + 1] == "st.shared.v4.b32 [%r5], {t0,t1,t2,t3}"


@pytest.mark.parametrize("statement", ["cp.async.commit_group;", "cp.async.wait_group 0;", "cp.async.wait_group 3;"])
def test_groups_of_copies_vanish(statement: str) -> None:
    assert lowered(statement) == ""


def test_packing_keeps_the_order_of_halves() -> None:
    got = lowered("cvt.rn.f16x2.f32 %r1, %f2, %f3;")
    # The first source is the upper half.
    assert "cvt.rn.f16.f32 h, %f2;" in got
    assert "cvt.rn.f16.f32 l, %f3;" in got
    assert "mov.b32 %r1, {l,h};" in got
    relu = lowered("cvt.rn.relu.f16x2.f32 %r1, %f2, %f3;")
    for half, source, value in (("h", "%f2", "v"), ("l", "%f3", "u")):
        predicate = re.search(rf"setp\.le\.f32 (\w), {source}, 0f00000000;", relu)
        assert predicate is not None
        assert f"selp.f32 {value}, 0f00000000, {source}, {predicate[1]};" in relu
        assert f"cvt.rn.f16.f32 {half}, {value};" in relu


@pytest.mark.parametrize("statement", ["max.NaN.f16x2 %r1, %r2, %r3;", "max.NaN.f32 %f1, %f2, %f3;"])
def test_maxima_keep_nan(statement: str) -> None:
    got = lowered(statement)
    assert "max.NaN" not in got
    assert re.search(r"setp\.nan\.f(16x2|32) ", got)


@pytest.mark.parametrize(
    "statement",
    [
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r5];",
        "ld.global.nc.v4.f32 {%f1,%f2,%f3,%f4}, [%rd5];",
        "st.shared.b32 [%r1], %r2;",
        "min.f32 %f1, %f2, 0f42200000;",
        "mov.u32 %r1, %dynamic_smem_size;",
        "bar.warp.sync 0xffffffff;",
        "{.reg .b16 l,h; mov.b32 {l,h}, %r1; cvt.f32.f16 %f1, l; cvt.f32.f16 %f2, h;}",
        "{.reg .pred p; setp.ne.s32 p, %r1, 0; @p st.global.b32 [%rd1], 1;}",
    ],
)
def test_what_old_gpus_have_stays(statement: str) -> None:
    assert lowered(statement).replace(" ", "") == statement.replace(" ", "")


def test_what_nvvm_wrote_stays() -> None:
    got = lower(block("cp.async.commit_group;"), "k")
    assert got.startswith("\tmov.u32 \t%r1, %tid.x;\n")
    assert got.endswith("\tmax.NaN.f32 \t%f9, %f1, %f2;\n")


@pytest.mark.parametrize(
    "statement",
    [
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1,%f2,%f3,%f4},{%r1,%r2,%r3,%r4},{%r5,%r6},"
        "{%f5,%f6,%f7,%f8};",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4},{%r1,%r2,%r3,%r4},{%r5,%r6},"
        "{%f5,%f6,%f7,%f8};",
        "cp.async.ca.shared.global [%r5], [%rd7], 4, %r9;",
        "cp.async.wait_all;",
        "cvt.rna.tf32.f32 %r1, %f1;",
        "cvt.rn.bf16x2.f32 %r1, %f2, %f3;",
        "min.NaN.f16x2 %r1, %r2, %r3;",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1,%r2}, [%r5];",
        "griddepcontrol.wait;",
        "wgmma.fence.sync.aligned;",
        "{.reg .pred p; setp.ne.s32 p, %r1, 0; @p cp.async.bulk.commit_group;}",
        # Registers of the statement's own scope could be hidden by those of its replacement.
        "{.reg .b32 t0; mov.b32 t0, 0; max.NaN.f16x2 %r1, t0, %r3;}",
        "mov.b32 %r1, %r2",
    ],
)
def test_what_is_not_known_is_refused(statement: str) -> None:
    with pytest.raises(BackendError, match=r"kernel k has the instruction .*7\.5") as caught:
        lower(block(statement), "k")
    assert "\n" not in str(caught.value)


def test_candidates_claim_no_less_than_their_kernels() -> None:
    for candidate in registry.candidates():
        for request in candidate.requests:
            made = request.make()
            kernel = getattr(made, "kernel", made)
            assert candidate.capability >= kernel.capability, (candidate.layer, candidate.name)


def test_turing_has_a_kernel_for_every_layer() -> None:
    chosen = registry.portable((7, 5))
    assert set(chosen.choices) == set(registry.LAYERS)
    assert {c.storage for c in chosen.candidates()} == {"", "half"}
    found = look_up(Key(capability=(7, 5)))
    assert found.missing == ()
    assert {c.capability for c in found.selection.candidates()} == {(7, 5)}
