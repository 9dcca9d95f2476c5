s/@WIDTH@/16/g
s/@NAME@/lanes/
