"op"() {a = dense_resource<w> : tensor<9xf32>} : () -> ()
{-# dialect_resources: {builtin: {w: "0x0400000000000000"}} #-}