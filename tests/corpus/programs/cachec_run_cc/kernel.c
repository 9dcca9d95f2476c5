#include "tile.h"
#ifdef FAST
int fast = FAST;
#endif
int size = TILE * 2;
