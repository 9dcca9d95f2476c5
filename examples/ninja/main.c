#include <stdio.h>

#include "modules.h"

int main(void) {
  printf("%d\n", shift(scale(12)));
  return 0;
}
