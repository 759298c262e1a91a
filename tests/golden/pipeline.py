#!/usr/bin/env python3
"""Pipeline schedules as torch.distributed.pipelining makes them, in its own CSV format: tests/golden/data/pipeline.csv.

    python3 tests/golden/pipeline.py        needs torch; made with the version that the file names

Each schedule is a line `# NAME stages micro-batches chunks-a-stage`, then one row a rank. Only the order of actions is
taken: torch's empty cells (idle slots, for its own simulator) and its communication are left out. Its 1F1B is not here:
the list that this version gives for it misses the first forward of the last rank.
"""
import csv
import io
import os

import torch
from torch.distributed.pipelining import schedules as torch_schedules


class Stage:
    """What the constructors of schedules ask of a stage; no process group behind it."""

    def __init__(self, index, stages, group_size, rank):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, stages, group_size, rank
        self.is_first, self.is_last, self.has_backward = index == 0, index == stages - 1, True
        self.stage_index_to_group_rank, self.device, self.submod = {}, torch.device("cpu"), torch.nn.Identity()
        self.dw_builder = None

    def __getattr__(self, name):  # anything else: a hook that does nothing
        return lambda *a, **k: None


def order(cls, stages, micros, virtual, v_shaped=False):
    chunks = stages * virtual
    mine = [0, chunks - 1] if v_shaped else [stages * k for k in range(virtual)]
    objects = [Stage(i, chunks, stages, 0) for i in mine]
    made = cls(objects, n_microbatches=micros, loss_fn=lambda *a: None)
    return made.pipeline_order


def rows(pipeline_order):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for rank in sorted(pipeline_order):
        writer.writerow([str(a) for a in pipeline_order[rank] if a is not None and a.is_compute_op])
    return out.getvalue()


def gpipe(stages, micros):
    made = {}
    for rank in range(stages):
        schedule = torch_schedules.ScheduleGPipe(Stage(rank, stages, stages, rank), n_microbatches=micros, loss_fn=lambda *a: None)
        made[rank] = schedule._get_pipeline_order()[rank]
    return made


def main():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "pipeline.csv")
    with open(here, "w") as f:
        f.write(f"# torch {torch.__version__.split('+')[0]}, tests/golden/pipeline.py\n")
        for stages, micros in [(2, 4), (3, 7), (4, 8), (4, 2)]:
            f.write(f"# gpipe {stages} {micros} 1\n" + rows(gpipe(stages, micros)))
        for stages, micros, virtual in [(2, 2, 2), (2, 4, 2), (4, 8, 2), (4, 8, 3), (3, 9, 4)]:
            made = order(torch_schedules.ScheduleInterleaved1F1B, stages, micros, virtual)
            f.write(f"# interleaved {stages} {micros} {virtual}\n" + rows(made))
        for stages, micros in [(2, 3), (2, 6), (3, 5), (4, 8), (4, 3), (4, 12)]:
            made = order(torch_schedules.ScheduleZBVZeroBubble, stages, micros, 2, v_shaped=True)
            f.write(f"# zb-v {stages} {micros} 2\n" + rows(made))


if __name__ == "__main__":
    main()
