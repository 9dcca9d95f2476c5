func.func @scale(%x: i32) -> i32 {
  %factor = arith.constant 3 : i32
  %y = arith.muli %x, %factor : i32
  return %y : i32
}
