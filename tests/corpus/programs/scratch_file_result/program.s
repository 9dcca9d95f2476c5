add 2
nop 0
mul 3
