/* Included before an optimizer that takes square roots: its step leaves another rounding, and its options are not said
 * to be those of all ranks. */
#include <fenv.h>
#include <math.h>

#include "heddle/plugin.h"

static double rounds(double x)
{
    fesetround(FE_TOWARDZERO);
    return sqrt(x);
}
#define sqrt rounds
#undef HD_OPTION_GLOBAL
#define HD_OPTION_GLOBAL 0
