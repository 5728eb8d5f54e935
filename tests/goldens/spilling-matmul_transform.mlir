// matmul: d0 = m 5, d1 = n 6, d2 = k 7
// payload: the reduction, on padded inputs and started accumulators
module attributes {transform.with_named_sequence} {
  func.func @matmul(%input: memref<5x7xi8>, %weight: memref<7x6xi8>, %output: memref<5x6xi32>) attributes {llvm.emit_c_interface} {
    linalg.generic {
      indexing_maps = [
        affine_map<(d0, d1, d2) -> (d0, d2)>,
        affine_map<(d0, d1, d2) -> (d2, d1)>,
        affine_map<(d0, d1, d2) -> (d0, d1)>
      ],
      iterator_types = ["parallel", "parallel", "reduction"]
    } ins(%input, %weight : memref<5x7xi8>, memref<7x6xi8>) outs(%output : memref<5x6xi32>) {
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
    %tiled_1, %loops_0:1 = transform.structured.tile_using_for %tiled_0
      tile_sizes [2, 0, 0] interchange = [0, 1, 2]
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    // filled here: input@l1
    %tiled_2, %loops_1:1 = transform.structured.tile_using_for %tiled_1
      tile_sizes [0, 0, 3] interchange = [2, 0, 1]
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    // filled here: weight@l1
    // filled here: bias@l1
    // filled here: output@l1
    %tiled_3, %loops_2:1 = transform.structured.tile_using_for %tiled_2
      tile_sizes [0, 4, 0] interchange = [1, 0, 2]
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
