// matmul: m = 5, n = 6, k = 7
// input: int8, index [m, k]
// weight: int8, index [k, n]
// bias: int32, index [n]
// output: int32, index [m, n]
// memory spaces: 0 = dram, 1 = l1
module {
  memref.global @l1 : memref<208xi8, 1> = uninitialized {alignment = 8 : i64}
  memref.global @output_partial : memref<5x6xi32> = uninitialized
  func.func @matmul(%input: memref<5x7xi8>, %weight: memref<7x6xi8>, %bias: memref<6xi32>, %output: memref<5x6xi32>) attributes {llvm.emit_c_interface} {
    %c0 = arith.constant 0 : index
    %c28 = arith.constant 28 : index
    %c64 = arith.constant 64 : index
    %c112 = arith.constant 112 : index
    %c5 = arith.constant 5 : index
    %c2 = arith.constant 2 : index
    %c1 = arith.constant 1 : index
    %c7 = arith.constant 7 : index
    %c3 = arith.constant 3 : index
    %c6 = arith.constant 6 : index
    %cst_10_i1 = arith.constant true
    %c4 = arith.constant 4 : index
    %l1 = memref.get_global @l1 : memref<208xi8, 1>
    %output_partial = memref.get_global @output_partial : memref<5x6xi32>
    %input_l1 = memref.view %l1[%c0][] : memref<208xi8, 1> to memref<2x7xi8, 1>
    %weight_l1 = memref.view %l1[%c28][] : memref<208xi8, 1> to memref<3x6xi8, 1>
    %bias_l1 = memref.view %l1[%c64][] : memref<208xi8, 1> to memref<6xi32, 1>
    %output_l1 = memref.view %l1[%c112][] : memref<208xi8, 1> to memref<2x6xi32, 1>
    scf.for %m_0 = %c0 to %c5 step %c2 {
      %0 = arith.addi %m_0, %c2 : index
      %m_0_end = arith.minsi %0, %c5 : index
      // input in l1, below dram: [2, 7] at byte 0
      %1 = arith.subi %m_0_end, %m_0 : index
      scf.for %i0 = %c0 to %1 step %c1 {
        scf.for %i1 = %c0 to %c7 step %c1 {
          %2 = arith.addi %m_0, %i0 : index
          %3 = memref.load %input[%2, %i1] : memref<5x7xi8>
          memref.store %3, %input_l1[%i0, %i1] : memref<2x7xi8, 1>
        }
      }
      scf.for %k_0 = %c0 to %c7 step %c3 {
        %4 = arith.addi %k_0, %c3 : index
        %k_0_end = arith.minsi %4, %c7 : index
        // weight in l1, below dram: [3, 6] at byte 28
        %5 = arith.subi %k_0_end, %k_0 : index
        scf.for %i0 = %c0 to %5 step %c1 {
          scf.for %i1 = %c0 to %c6 step %c1 {
            %6 = arith.addi %k_0, %i0 : index
            %7 = memref.load %weight[%6, %i1] : memref<7x6xi8>
            memref.store %7, %weight_l1[%i0, %i1] : memref<3x6xi8, 1>
          }
        }
        // bias in l1, below dram: [6] at byte 64
        %8 = arith.cmpi eq, %k_0, %c0 : index
        scf.if %8 {
          scf.for %i0 = %c0 to %c6 step %c1 {
            %9 = memref.load %bias[%i0] : memref<6xi32>
            memref.store %9, %bias_l1[%i0] : memref<6xi32, 1>
          }
        }
        // output in l1, below dram: [2, 6] at byte 112
        %10 = arith.xori %8, %cst_10_i1 : i1
        scf.if %10 {
          scf.for %i0 = %c0 to %1 step %c1 {
            scf.for %i1 = %c0 to %c6 step %c1 {
              %11 = arith.addi %m_0, %i0 : index
              %12 = memref.load %output_partial[%11, %i1] : memref<5x6xi32>
              memref.store %12, %output_l1[%i0, %i1] : memref<2x6xi32, 1>
            }
          }
        }
        scf.if %8 {
          scf.for %m_in = %c0 to %1 step %c1 {
            scf.for %n_in = %c0 to %c6 step %c1 {
              %13 = memref.load %bias_l1[%n_in] : memref<6xi32, 1>
              memref.store %13, %output_l1[%m_in, %n_in] : memref<2x6xi32, 1>
            }
          }
        }
        scf.for %n_0 = %c0 to %c6 step %c4 {
          %14 = arith.addi %n_0, %c4 : index
          %n_0_end = arith.minsi %14, %c6 : index
          scf.for %m_in = %c0 to %1 step %c1 {
            %15 = arith.subi %n_0_end, %n_0 : index
            scf.for %n_in = %c0 to %15 step %c1 {
              %16 = arith.addi %n_0, %n_in : index
              %17 = memref.load %output_l1[%m_in, %16] : memref<2x6xi32, 1>
              %19 = scf.for %k_in = %c0 to %5 step %c1 iter_args(%18 = %17) -> (i32) {
                %20 = arith.addi %k_0, %k_in : index
                %21 = memref.load %input_l1[%m_in, %20] : memref<2x7xi8, 1>
                %22 = arith.extsi %21 : i8 to i32
                %23 = memref.load %weight_l1[%k_in, %16] : memref<3x6xi8, 1>
                %24 = arith.extsi %23 : i8 to i32
                %25 = arith.muli %22, %24 : i32
                %26 = arith.addi %18, %25 : i32
                scf.yield %26 : i32
              }
              memref.store %19, %output_l1[%m_in, %16] : memref<2x6xi32, 1>
            }
          }
        }
        %27 = arith.cmpi eq, %k_0_end, %c7 : index
        scf.if %27 {
          scf.for %i0 = %c0 to %1 step %c1 {
            scf.for %i1 = %c0 to %c6 step %c1 {
              %28 = memref.load %output_l1[%i0, %i1] : memref<2x6xi32, 1>
              %29 = arith.addi %m_0, %i0 : index
              memref.store %28, %output[%29, %i1] : memref<5x6xi32>
            }
          }
        } else {
          scf.for %i0 = %c0 to %1 step %c1 {
            scf.for %i1 = %c0 to %c6 step %c1 {
              %30 = memref.load %output_l1[%i0, %i1] : memref<2x6xi32, 1>
              %31 = arith.addi %m_0, %i0 : index
              memref.store %30, %output_partial[%31, %i1] : memref<5x6xi32>
            }
          }
        }
      }
    }
    return
  }
}
