func.func @shift(%x: i32) -> i32 {
  %offset = arith.constant 4 : i32
  %y = arith.addi %x, %offset : i32
  return %y : i32
}
