{% set t = "tensor<" ~ shape | dims ~ "x" ~ dtype ~ ">" %}
func.func @main(%x: {{ t }}) -> {{ t }} {
  %c = arith.constant dense<3.0> : {{ t }}
  %y = arith.mulf %x, %c : {{ t }}
{% include "tail.mlir" %}
