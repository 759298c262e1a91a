/* Pictures of timelines: a lane cut into equal columns, each shown as the action that took most of it. Shared by
 * text and SVG. */
#ifndef HD_ANALYSIS_TIMELINE_H
#define HD_ANALYSIS_TIMELINE_H

#include "analysis/sim/simulate.h"

struct hd__timeline_cell {
    char letter;   /* F R B W O; a g s t b > < are communication; 0: idle */
    uint8_t phase; /* HD__PHASE_... */
    uint16_t op;
    int32_t micro; /* -1: none */
    int32_t chunk;
};

/* cells[n] of [0, seconds). Compute: the action (or idle) that took most of a column. Communication: any that
 * touched it. */
void hd__timeline_cells(const struct hd__timeline_lane *lane, double seconds, uint32_t n,
                        struct hd__timeline_cell *cells);
/* A round number of seconds between marks, giving about `marks` of them. */
double hd__timeline_tick(double seconds, int32_t marks);
/* First the phases in their order, then communication. Colours that the colour-blind distinguish (Okabe and Ito). */
enum { HD__PHASES = 5, HD__TIMELINE_LETTERS = 13 };
struct hd__timeline_letter {
    char letter;
    uint16_t op; /* of communication */
    const char *fill, *text;
};
extern const struct hd__timeline_letter hd__timeline_letters[HD__TIMELINE_LETTERS];
/* "stage 1" or "rank 3". */
void hd__timeline_rank_label(const struct hd__timeline *t, const struct hd__rank_times *r, char out[32]);
/* The lane's stream: "compute", "tp", "pp". */
const char *hd__timeline_lane_label(const struct hd__timeline_lane *lane);
int hd__timeline_is_pp_lane(
    const struct hd__timeline_lane *lane); /* messages between stages: several streams, one row */
int hd__timeline_is_shown(const struct hd__timeline *t, uint32_t n, int32_t only);

#endif
