// forum-conv2d: d0 = n 2, d1 = k 16, d2 = c 16, d3 = p 112, d4 = q 64, d5 = r 3, d6 = s 3
// payload: the reduction, on padded inputs and started accumulators
module attributes {transform.with_named_sequence} {
  func.func @forum_conv2d(%input: memref<2x16x114x66xi8>, %weight: memref<16x16x3x3xi8>, %output: memref<2x16x112x64xi32>) attributes {llvm.emit_c_interface} {
    linalg.generic {
      indexing_maps = [
        affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d2, d3 + d5, d4 + d6)>,
        affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d1, d2, d5, d6)>,
        affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d3, d4)>
      ],
      iterator_types = ["parallel", "parallel", "reduction", "parallel", "parallel", "reduction", "reduction"]
    } ins(%input, %weight : memref<2x16x114x66xi8>, memref<16x16x3x3xi8>) outs(%output : memref<2x16x112x64xi32>) {
    ^bb0(%x0: i8, %x1: i8, %sum: i32):
      %w0 = arith.extsi %x0 : i8 to i32
      %w1 = arith.extsi %x1 : i8 to i32
      %p0 = arith.muli %w0, %w1 : i32
      %folded = arith.addi %sum, %p0 : i32
      linalg.yield %folded : i32
    }
    return
  }

  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %tiled_0 = transform.structured.match ops{["linalg.generic"]} in %module : (!transform.any_op) -> !transform.any_op
    // filled here: weight@wgt_buffer
    // filled here: bias@acc_buffer
    %tiled_1, %loops_0:2 = transform.structured.tile_using_for %tiled_0
      tile_sizes [1, 0, 0, 56, 0, 0, 0] interchange = [0, 3, 1, 2, 4, 5, 6]
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    // filled here: output@acc_buffer
    %tiled_2, %loops_1:1 = transform.structured.tile_using_for %tiled_1
      tile_sizes [0, 0, 8, 0, 0, 0, 0] interchange = [2, 0, 1, 3, 4, 5, 6]
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    // filled here: input@inp_buffer
    transform.yield
  }
}
