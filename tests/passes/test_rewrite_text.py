"""Print -> run -> check: rewrites, as text before and after."""

from __future__ import annotations

from pimflow.ir import Decision, Pipeline, Plan, SplitRows
from pimflow.ir.text import parse_graph, print_graph
from pimflow.passes import ApplyPlan, FoldBatchNorm, FuseEpilogues, Pass, RemoveDropout, RemoveIdentity
from pimflow.passes.manager import PassManager

HEAD = 'graph @g opset {"" = 17} {\n'
WEIGHTS = "  const %w = float32[1, 1, 1, 1] [2.0]\n"
KERNEL = "  const %k = float32[1, 1, 3, 1] [1.0, 2.0, 3.0]\n"


def check(one: Pass, before: str, after: str) -> None:
    result = PassManager((one,)).run(parse_graph(HEAD + before + "}\n"))
    assert print_graph(result.graph).strip() == print_graph(parse_graph(HEAD + after + "}\n")).strip()


def apply(*decisions: Decision) -> ApplyPlan:
    return ApplyPlan(Plan("test", decisions, 0.0, 0.0))


def test_split_with_a_follower() -> None:
    check(
        apply(SplitRows("conv", 2, "newton++", ("relu",))),
        f"""
  input %x : float32[1, 1, 6, 4]
{KERNEL}
  %y = Conv2d(%x, %k) {{kernel = [3, 1], pads = [1, 0, 1, 0]}} : float32[1, 1, 6, 4] @conv
  %z = Elementwise(%y) {{kind = "Relu"}} : float32[1, 1, 6, 4] @relu {{fused_into = "conv"}}
  output %z
""",
        f"""
  input %x : float32[1, 1, 6, 4]
{KERNEL}
  %x_rows0_3 = Slice(%x) {{axis = 2, start = 0, stop = 3}} : float32[1, 1, 3, 4]
    @slice_x_rows0_3 on gpu {{region = 0, origin = "conv"}}
  %y_gpu = Conv2d(%x_rows0_3, %k) {{kernel = [3, 1], pads = [1, 0, 0, 0]}} : float32[1, 1, 2, 4]
    @conv_gpu on gpu {{region = 0, origin = "conv"}}
  %z_gpu = Elementwise(%y_gpu) {{kind = "Relu"}} : float32[1, 1, 2, 4]
    @relu_gpu on gpu {{region = 0, origin = "relu", fused_into = "conv_gpu"}}
  %x_rows1_6 = Slice(%x) {{axis = 2, start = 1, stop = 6}} : float32[1, 1, 5, 4]
    @slice_x_rows1_6 on gpu {{region = 0, origin = "conv"}}
  %y_pim = Conv2d(%x_rows1_6, %k) {{kernel = [3, 1], pads = [0, 0, 1, 0]}} : float32[1, 1, 4, 4]
    @conv_pim on pim {{region = 0, choice = "newton++", origin = "conv"}}
  %z_pim = Elementwise(%y_pim) {{kind = "Relu"}} : float32[1, 1, 4, 4]
    @relu_pim on gpu {{region = 0, origin = "relu", fused_into = "conv_pim"}}
  %z = Concat(%z_gpu, %z_pim) {{axis = 2}} : float32[1, 1, 6, 4]
    @concat_z on gpu {{region = 0, origin = "relu"}}
  output %z
""",
    )


def test_pipeline_bottom_first() -> None:
    check(
        apply(Pipeline(("a", "b"), ("pim", "gpu"), (3, 3), "auto", bottom_first=True)),
        f"""
  input %x : float32[1, 1, 6, 4]
{WEIGHTS}{KERNEL}
  %y = Conv2d(%x, %w) {{kernel = [1, 1]}} : float32[1, 1, 6, 4] @a
  %z = Conv2d(%y, %k) {{kernel = [3, 1], pads = [1, 0, 1, 0]}} : float32[1, 1, 6, 4] @b
  output %z
""",
        f"""
  input %x : float32[1, 1, 6, 4]
{WEIGHTS}{KERNEL}
  %x_rows2_6 = Slice(%x) {{axis = 2, start = 2, stop = 6}} : float32[1, 1, 4, 4]
    @slice_x_rows2_6 on gpu {{region = 0, stage = 0, origin = "a"}}
  %y_s0 = Conv2d(%x_rows2_6, %w) {{kernel = [1, 1]}} : float32[1, 1, 4, 4]
    @a_s0 on pim {{region = 0, stage = 0, choice = "auto", origin = "a"}}
  %z_s0 = Conv2d(%y_s0, %k) {{kernel = [3, 1], pads = [0, 0, 1, 0]}} : float32[1, 1, 3, 4]
    @b_s0 on gpu {{region = 0, stage = 0, origin = "b"}}
  %x_rows0_2 = Slice(%x) {{axis = 2, start = 0, stop = 2}} : float32[1, 1, 2, 4]
    @slice_x_rows0_2 on gpu {{region = 0, stage = 1, origin = "a"}}
  %y_s1 = Conv2d(%x_rows0_2, %w) {{kernel = [1, 1]}} : float32[1, 1, 2, 4]
    @a_s1 on pim {{region = 0, stage = 1, choice = "auto", origin = "a"}}
  %y = Concat(%y_s1, %y_s0) {{axis = 2}} : float32[1, 1, 6, 4]
    @concat_y on gpu {{region = 0, stage = 1, origin = "b"}}
  %y_rows0_4 = Slice(%y) {{axis = 2, start = 0, stop = 4}} : float32[1, 1, 4, 4]
    @slice_y_rows0_4 on gpu {{region = 0, stage = 1, origin = "b"}}
  %z_s1 = Conv2d(%y_rows0_4, %k) {{kernel = [3, 1], pads = [1, 0, 0, 0]}} : float32[1, 1, 3, 4]
    @b_s1 on gpu {{region = 0, stage = 1, origin = "b"}}
  %z = Concat(%z_s1, %z_s0) {{axis = 2}} : float32[1, 1, 6, 4]
    @concat_z on gpu {{region = 0, stage = 1, origin = "b"}}
  output %z
""",
    )


def test_batch_norm_disappears() -> None:
    check(
        FoldBatchNorm(),
        f"""
  input %x : float32[1, 1, 6, 4]
{WEIGHTS}
  const %s = float32[1] [3.0]
  const %b = float32[1] [5.0]
  const %m = float32[1] [1.0]
  const %v = float32[1] [4.0]
  %y = Conv2d(%x, %w) {{kernel = [1, 1]}} : float32[1, 1, 6, 4] @conv
  %z = BatchNorm(%y, %s, %b, %m, %v) {{epsilon = 0.0}} : float32[1, 1, 6, 4] @norm
  output %z
""",
        """
  input %x : float32[1, 1, 6, 4]
  const %w_folded = float32[1, 1, 1, 1] [3.0]
  const %conv_bias = float32[1] [3.5]
  %z = Conv2d(%x, %w_folded, %conv_bias) {kernel = [1, 1]} : float32[1, 1, 6, 4] @conv
  output %z
""",
    )


def test_identities_and_dropout_disappear() -> None:
    before = """
  input %x : float32[2, 3]
  %a = OnnxOp(%x) {op_type = "KIND"} : float32[2, 3] @a
  %b = Elementwise(%a) {kind = "Relu"} : float32[2, 3] @b
  %c = OnnxOp(%b) {op_type = "KIND"} : float32[2, 3] @c
  output %c
"""
    after = """
  input %x : float32[2, 3]
  %c = Elementwise(%x) {kind = "Relu"} : float32[2, 3] @b
  output %c
"""
    check(RemoveIdentity(), before.replace("KIND", "Identity"), after)
    check(RemoveDropout(), before.replace("KIND", "Dropout"), after)


def test_fusion_is_an_annotation() -> None:
    check(
        FuseEpilogues(),
        f"""
  input %x : float32[1, 1, 6, 4]
{WEIGHTS}
  %y = Conv2d(%x, %w) {{kernel = [1, 1]}} : float32[1, 1, 6, 4] @conv
  %z = Elementwise(%y) {{kind = "Relu"}} : float32[1, 1, 6, 4] @relu
  output %z
""",
        f"""
  input %x : float32[1, 1, 6, 4]
{WEIGHTS}
  %y = Conv2d(%x, %w) {{kernel = [1, 1]}} : float32[1, 1, 6, 4] @conv
  %z = Elementwise(%y) {{kind = "Relu"}} : float32[1, 1, 6, 4] @relu {{fused_into = "conv"}}
  output %z
""",
    )
