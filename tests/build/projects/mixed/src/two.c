#include <kernels.h>
float mean(const float *values, size_t count) { return sum(values, count) / (float)count; }
