"""Benchmarks count the right bytes and FLOPs in compiled programs where both are known
(helpers/ahead_hlo.py), and their search finds the limit (ahead.py).
"""

import sys

import pytest

from tests.test_architecture import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import ahead
from helpers import ahead_hlo

PROGRAM = """HloModule a_step, is_scheduled=true, entry_computation_layout={(f32[4,8]{1,0})->f32[4]{0}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

%fused_part (p1: bf16[100,8], p0: f32[4,8]) -> (f32[4], bf16[4,8]) {
  %p1 = bf16[100,8]{1,0} parameter(1)
  %slice.1 = bf16[4,8]{1,0} slice(%p1), slice={[0:4], [0:8]}
  %p0 = f32[4,8]{1,0} parameter(0)
  %convert.1 = f32[4,8]{1,0} convert(%slice.1)
  %add.2 = f32[4,8]{1,0} add(%convert.1, %p0)
  %zero = f32[] constant(0)
  %reduce.1 = f32[4]{0} reduce(%add.2, %zero), dimensions={1}, to_apply=%sum
  %convert.2 = bf16[4,8]{1,0} convert(%add.2)
  ROOT %tuple.1 = (f32[4]{0}, bf16[4,8]{1,0}) tuple(%reduce.1, %convert.2)
}

%body (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %state = (s32[], f32[4,8]{1,0}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %value = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %copy.1 = f32[4,8]{1,0} copy(%value)
  ROOT %tuple.2 = (s32[], f32[4,8]{1,0}) tuple(%count, %copy.1)
}

%condition (state.1: (s32[], f32[4,8])) -> pred[] {
  %state.1 = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %always = pred[] constant(true)
}

ENTRY %main (x: f32[4,8], y: bf16[100,8]) -> f32[4] {
  %x = f32[4,8]{1,0} parameter(0), metadata={op_name="XLA_Args"}
  %y = bf16[100,8]{1,0} parameter(1)
  %start = s32[] constant(0)
  %tuple.3 = (s32[], f32[4,8]{1,0}) tuple(%start, %x)
  %while.1 = (s32[], f32[4,8]{1,0}) while(%tuple.3), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %gte = f32[4,8]{1,0} get-tuple-element(%while.1), index=1
  %fusion.1 = (f32[4]{0}, bf16[4,8]{1,0}) fusion(%gte, %y), kind=kInput, calls=%fused_part, metadata={op_name="PartitionedCall/Sum"}
  %left = bf16[4,8]{1,0} get-tuple-element(%fusion.1), index=1
  %gemm.1 = (bf16[4,100]{1,0}, s8[512]{0}) custom-call(%left, %y), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"beta":0,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}
  ROOT %sums = f32[4]{0} get-tuple-element(%fusion.1), index=0
}
"""  # noqa: E501


def test_kernels_of_a_program():
    copy, fusion, gemm = ahead_hlo.kernels(PROGRAM)
    assert (copy.name, copy.kind, copy.times, copy.num_bytes) == (
        "copy.1",
        "other",
        3,
        2 * 4 * 8 * 4,
    )
    # The fusion reads all of x and only the slice of y, whatever the order of its parameters, and
    # writes sums and values.
    assert (fusion.kind, fusion.times) == ("other", 1)
    assert fusion.num_bytes == 4 * 8 * 4 + 4 * 8 * 2 + 4 * 4 + 4 * 8 * 2
    assert (gemm.kind, gemm.flops) == ("product", 2 * 4 * 100 * 8)
    assert gemm.num_bytes == (4 * 8 + 100 * 8 + 4 * 100) * 2  # without its workspace


IN_PLACE = """
%fused_update (p0: f32[100,8], p1: f32[4,8], p2: s32[4,1], p3: bf16[50,8]) -> f32[100,8] {
  %p0 = f32[100,8]{1,0} parameter(0)
  %p1 = f32[4,8]{1,0} parameter(1)
  %p2 = s32[4,1]{1,0} parameter(2)
  %p3 = bf16[50,8]{1,0} parameter(3)
  %convert.1 = f32[50,8]{1,0} convert(%p3)
  %gather.1 = f32[4,8]{1,0} gather(%convert.1, %p2), slice_sizes={1,8}
  %add.1 = f32[4,8]{1,0} add(%p1, %gather.1)
  ROOT %scatter.1 = f32[100,8]{1,0} scatter(%p0, %p2, %add.1), to_apply=%sum
}

ENTRY %main (a: f32[100,8], b: f32[4,8], c: s32[4,1], d: bf16[50,8], q: bf16[2,16,4,8]) -> f32[100,8] {
  %a = f32[100,8]{1,0} parameter(0)
  %b = f32[4,8]{1,0} parameter(1)
  %c = s32[4,1]{1,0} parameter(2)
  %d = bf16[50,8]{1,0} parameter(3)
  %q = bf16[2,16,4,8]{3,2,1,0} parameter(4)
  %forward = (bf16[2,4,16,8]{3,1,2,0}, f32[2,4,16]{2,1,0}, u8[0]{0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":["2","4","16","16"]}}}
  ROOT %update = f32[100,8]{1,0} fusion(%a, %b, %c, %d), kind=kInput, calls=%fused_update
}
"""  # noqa: E501


def test_parts_that_are_gathered_and_updated_in_place():
    attention, update = ahead_hlo.kernels(IN_PLACE)
    assert (attention.kind, attention.flops) == ("attention", 2 * 2 * (2 * 4 * 16 * 16) * 8)
    rows, indices = 4 * 8 * 4, 4 * 4
    # read: of a its updates, b, c, the gathered part of d; written
    assert update.num_bytes == (rows + rows + indices + 4 * 8 * 2) + rows


@pytest.mark.parametrize(
    "line, said",
    [
        ("  %a = f32[] add(%b, %c", "parenthesis"),
        ("  ROOT %a = f32[] conditional(%b, %c), branch_computations={%d, %e}", "not counted"),
        ("  ROOT %a = f32[4] while(%b), body=%main", "how often"),
        ("  ROOT %a = f9[4] negate()", "f9: not known"),
    ],
)
def test_what_cannot_be_counted_is_refused(line, said):
    with pytest.raises(ValueError, match=said):
        ahead_hlo.kernels("ENTRY %main () -> f32[] {\n" + line + "\n}")


@pytest.mark.parametrize("limit", [99, 107, 108, 1000, 20_000])
@pytest.mark.parametrize(
    "bytes_of",
    [lambda n: 100 + 7 * n, lambda n: 100 + n**1.3, lambda n: 100 + 40 * (n // 8) + n**0.5],
)
def test_the_most_rows_that_fit(bytes_of, limit):
    found = ahead.most_rows(bytes_of, limit)
    assert found == 0 or bytes_of(found) <= limit
    assert bytes_of(found + max(1, found // 32)) > limit
