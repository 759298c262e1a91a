/* Machines inside this one: network namespaces joined by a bridge, each with an interface eth0 at 10.77.0.1, .2, ...
 * They have no names and die with the process that made them, whatever way it ends. Root is needed, and `ip`. */
#ifndef HD_TESTS_SYSTEM_MACHINES_H
#define HD_TESTS_SYSTEM_MACHINES_H

enum { MACHINES_MAX = 8 };

/* Whether that is possible here; if not, *why says what is missing. */
int machines_possible(const char **why);
/* Makes n machines. `rate`: of each one's sending, as tc has it ("1gbit"); NULL: as fast as it goes. */
void machines_up(int n, const char *rate);
/* far.c: machines whose packets take `delay` seconds, one way, however many there are. */
void machines_far(int n, double delay);
/* Machines without a network, and a command on one of them; it has to succeed. */
void machines_alone(int n);
void machine_run(int i, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Bytes that machine i has sent over eth0. */
unsigned long long machine_sent(int i);
/* For mpirun's plm_rsh_agent: a script that runs a command on machine nI, whose host name that is, of those that are
 * up. */
void machines_rsh(const char *path);
/* Of every hundred packets that machine i receives, so many are lost. */
void machine_loses(int i, int percent);
/* The calling thread, and what it starts from now on, is on machine i; -1: at home. What it starts has a monotonic
 * clock that differs between machines by a day and more, where the kernel has time namespaces. */
void machine_enter(int i);

#endif
