push 7
dup
mul
push 1
add
