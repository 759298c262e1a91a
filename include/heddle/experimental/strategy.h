/* The strategies' header before it was stable: heddle/strategy.h. This name goes with ABI 1.1. */
#include "heddle/strategy.h"
