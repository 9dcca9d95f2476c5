#pragma once
#include <stddef.h>
float sum(const float *values, size_t count);
