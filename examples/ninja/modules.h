/* The functions of the two modules. */
int scale(int x);
int shift(int x);
