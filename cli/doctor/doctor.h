/* cli/doctor: declarations shared by the parts of `heddle doctor`. */
#ifndef HD_CLI_DOCTOR_DOCTOR_H
#define HD_CLI_DOCTOR_DOCTOR_H

#include "cli/job.h"

/* WARN: works, and could be better or will not for some jobs. BAD: something will not run; the command fails. */
enum { HD__DOCTOR_OK, HD__DOCTOR_WARN, HD__DOCTOR_BAD };

struct hd__doctor_line {
    int state;
    char *group, *object, *words, *remedy; /* remedy: NULL where it is OK */
};

struct hd__doctor {
    HD__ARRAY(struct hd__doctor_line) lines;
    int32_t ranks; /* of the job on this machine; 1 without a job */
};

/* `words`: the state in words. The remedy is NULL where the state is OK. */
void hd__doctor_add(struct hd__doctor *d, int state, const char *group, const char *object, const char *remedy,
                    const char *format, ...) __attribute__((format(printf, 6, 7)));

void hd__doctor_machine(struct hd__doctor *d); /* machine.c: processor, clocks, memory, cgroup, huge pages, limits */
void hd__doctor_devices(struct hd__doctor *d); /* devices.c: GPUs and the links between them */
void hd__doctor_networks(struct hd__doctor *d);
/* meet.c: ranks as the environment names them, else as the job does; job NULL: none. */
void hd__doctor_rendezvous(struct hd__doctor *d, const struct hd__job *job);

#endif
