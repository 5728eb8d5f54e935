// forum-conv2d: n = 2, k = 16, c = 16, p = 112, q = 64, r = 3, s = 3
// input: int8, index [n, c, p + r - 1, q + s - 1]
// weight: int8, index [k, c, r, s]
// bias: int32, index [k]
// output: int8, index [n, k, p, q]
// memory spaces: 0 = dram, 1 = inp_buffer, 2 = wgt_buffer, 3 = acc_buffer
module {
  memref.global @inp_buffer : memref<30624xi8, 1> = uninitialized {alignment = 64 : i64}
  memref.global @wgt_buffer : memref<2304xi8, 2> = uninitialized {alignment = 64 : i64}
  memref.global @acc_buffer : memref<229440xi8, 3> = uninitialized {alignment = 64 : i64}
  func.func @forum_conv2d(%input: memref<2x16x112x64xi8>, %weight: memref<16x16x3x3xi8>, %bias: memref<16xi32>, %output: memref<2x16x112x64xi8>) attributes {llvm.emit_c_interface} {
    %c0 = arith.constant 0 : index
    %c64 = arith.constant 64 : index
    %c16 = arith.constant 16 : index
    %c1 = arith.constant 1 : index
    %c3 = arith.constant 3 : index
    %c2 = arith.constant 2 : index
    %c112 = arith.constant 112 : index
    %c56 = arith.constant 56 : index
    %c8 = arith.constant 8 : index
    %c58 = arith.constant 58 : index
    %c113 = arith.constant 113 : index
    %c0_i8 = arith.constant 0 : i8
    %c66 = arith.constant 66 : index
    %c1340_i64 = arith.constant 1340 : i64
    %c524288_i64 = arith.constant 524288 : i64
    %c20_i64 = arith.constant 20 : i64
    %c0_i64 = arith.constant 0 : i64
    %cm128_i64 = arith.constant -128 : i64
    %c127_i64 = arith.constant 127 : i64
    %inp_buffer = memref.get_global @inp_buffer : memref<30624xi8, 1>
    %wgt_buffer = memref.get_global @wgt_buffer : memref<2304xi8, 2>
    %acc_buffer = memref.get_global @acc_buffer : memref<229440xi8, 3>
    %weight_wgt_buffer = memref.view %wgt_buffer[%c0][] : memref<2304xi8, 2> to memref<16x16x3x3xi8, 2>
    %bias_acc_buffer = memref.view %acc_buffer[%c0][] : memref<229440xi8, 3> to memref<16xi32, 3>
    %output_acc_buffer = memref.view %acc_buffer[%c64][] : memref<229440xi8, 3> to memref<1x16x56x64xi32, 3>
    %input_inp_buffer = memref.view %inp_buffer[%c0][] : memref<30624xi8, 1> to memref<1x8x58x66xi8, 1>
    // weight in wgt_buffer, below dram: [16, 16, 3, 3] at byte 0
    scf.for %i0 = %c0 to %c16 step %c1 {
      scf.for %i1 = %c0 to %c16 step %c1 {
        scf.for %i2 = %c0 to %c3 step %c1 {
          scf.for %i3 = %c0 to %c3 step %c1 {
            %0 = memref.load %weight[%i0, %i1, %i2, %i3] : memref<16x16x3x3xi8>
            memref.store %0, %weight_wgt_buffer[%i0, %i1, %i2, %i3] : memref<16x16x3x3xi8, 2>
          }
        }
      }
    }
    // bias in acc_buffer, below dram: [16] at byte 0
    scf.for %i0 = %c0 to %c16 step %c1 {
      %1 = memref.load %bias[%i0] : memref<16xi32>
      memref.store %1, %bias_acc_buffer[%i0] : memref<16xi32, 3>
    }
    scf.for %n_0 = %c0 to %c2 step %c1 {
      scf.for %p_0 = %c0 to %c112 step %c56 {
        // output in acc_buffer, below dram: [1, 16, 56, 64] at byte 64
        scf.for %k_in = %c0 to %c16 step %c1 {
          scf.for %p_in = %c0 to %c56 step %c1 {
            scf.for %q_in = %c0 to %c64 step %c1 {
              %2 = memref.load %bias_acc_buffer[%k_in] : memref<16xi32, 3>
              memref.store %2, %output_acc_buffer[%c0, %k_in, %p_in, %q_in] : memref<1x16x56x64xi32, 3>
            }
          }
        }
        scf.for %c_0 = %c0 to %c16 step %c8 {
          // input in inp_buffer, below dram: [1, 8, 58, 66] at byte 0
          %3 = arith.subi %c1, %p_0 : index
          %input_inp_buffer_first_2 = arith.maxsi %3, %c0 : index
          %4 = arith.subi %c113, %p_0 : index
          %5 = arith.maxsi %4, %c0 : index
          %6 = arith.minsi %c58, %5 : index
          %input_inp_buffer_count_2 = arith.subi %6, %input_inp_buffer_first_2 : index
          scf.for %i1 = %c0 to %c8 step %c1 {
            scf.for %i2 = %c0 to %c58 step %c1 {
              scf.for %i3 = %c0 to %c66 step %c1 {
                memref.store %c0_i8, %input_inp_buffer[%c0, %i1, %i2, %i3] : memref<1x8x58x66xi8, 1>
              }
            }
          }
          %7 = arith.cmpi slt, %c0, %input_inp_buffer_count_2 : index
          scf.if %7 {
            scf.for %i1 = %c0 to %c8 step %c1 {
              scf.for %i2 = %c0 to %input_inp_buffer_count_2 step %c1 {
                scf.for %i3 = %c0 to %c64 step %c1 {
                  %8 = arith.addi %c_0, %i1 : index
                  %9 = arith.addi %p_0, %input_inp_buffer_first_2 : index
                  %10 = arith.subi %9, %c1 : index
                  %11 = arith.addi %10, %i2 : index
                  %12 = memref.load %input[%n_0, %8, %11, %i3] : memref<2x16x112x64xi8>
                  %13 = arith.addi %input_inp_buffer_first_2, %i2 : index
                  %14 = arith.addi %c1, %i3 : index
                  memref.store %12, %input_inp_buffer[%c0, %i1, %13, %14] : memref<1x8x58x66xi8, 1>
                }
              }
            }
          }
          scf.for %k_in = %c0 to %c16 step %c1 {
            scf.for %p_in = %c0 to %c56 step %c1 {
              scf.for %q_in = %c0 to %c64 step %c1 {
                %15 = memref.load %output_acc_buffer[%c0, %k_in, %p_in, %q_in] : memref<1x16x56x64xi32, 3>
                %17 = scf.for %c_in = %c0 to %c8 step %c1 iter_args(%16 = %15) -> (i32) {
                  %19 = scf.for %r_in = %c0 to %c3 step %c1 iter_args(%18 = %16) -> (i32) {
                    %21 = scf.for %s_in = %c0 to %c3 step %c1 iter_args(%20 = %18) -> (i32) {
                      %22 = arith.addi %p_in, %r_in : index
                      %23 = arith.addi %q_in, %s_in : index
                      %24 = memref.load %input_inp_buffer[%c0, %c_in, %22, %23] : memref<1x8x58x66xi8, 1>
                      %25 = arith.extsi %24 : i8 to i32
                      %26 = arith.addi %c_0, %c_in : index
                      %27 = memref.load %weight_wgt_buffer[%k_in, %26, %r_in, %s_in] : memref<16x16x3x3xi8, 2>
                      %28 = arith.extsi %27 : i8 to i32
                      %29 = arith.muli %25, %28 : i32
                      %30 = arith.addi %20, %29 : i32
                      scf.yield %30 : i32
                    }
                    scf.yield %21 : i32
                  }
                  scf.yield %19 : i32
                }
                memref.store %17, %output_acc_buffer[%c0, %k_in, %p_in, %q_in] : memref<1x16x56x64xi32, 3>
              }
            }
          }
        }
        scf.for %k_in = %c0 to %c16 step %c1 {
          scf.for %p_in = %c0 to %c56 step %c1 {
            scf.for %q_in = %c0 to %c64 step %c1 {
              %31 = memref.load %output_acc_buffer[%c0, %k_in, %p_in, %q_in] : memref<1x16x56x64xi32, 3>
              %32 = arith.extsi %31 : i32 to i64
              %scaled = arith.muli %32, %c1340_i64 : i64
              %33 = arith.addi %scaled, %c524288_i64 : i64
              %shifted = arith.shrsi %33, %c20_i64 : i64
              %positive = arith.maxsi %shifted, %c0_i64 : i64
              %raised = arith.maxsi %positive, %cm128_i64 : i64
              %saturated = arith.minsi %raised, %c127_i64 : i64
              %34 = arith.trunci %saturated : i64 to i8
              %35 = arith.extsi %34 : i8 to i32
              memref.store %35, %output_acc_buffer[%c0, %k_in, %p_in, %q_in] : memref<1x16x56x64xi32, 3>
            }
          }
        }
        scf.for %i1 = %c0 to %c16 step %c1 {
          scf.for %i2 = %c0 to %c56 step %c1 {
            scf.for %i3 = %c0 to %c64 step %c1 {
              %36 = memref.load %output_acc_buffer[%c0, %i1, %i2, %i3] : memref<1x16x56x64xi32, 3>
              %37 = arith.trunci %36 : i32 to i8
              %38 = arith.addi %p_0, %i2 : index
              memref.store %37, %output[%n_0, %i1, %38, %i3] : memref<2x16x112x64xi8>
            }
          }
        }
      }
    }
    return
  }
}
