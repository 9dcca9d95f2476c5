#include "kernels.h"
float sum(const float *values, size_t count) {
  float total = 0;
  for (size_t at = 0; at < count; ++at) total += values[at];
  return total;
}
