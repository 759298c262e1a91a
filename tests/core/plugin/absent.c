/* A library that is there when a plugin is built and gone when it is loaded. */
double absent_rate(void);
double absent_rate(void)
{
    return 1;
}
