#!/usr/bin/env python3
"""Makes tests/golden/run/events.tfevents: an event file written by TensorBoard's own classes, at fixed times.

  pip install tensorboard    (made with the version that it prints)

With a path as argument it reads that event file instead and prints the scalars that TensorBoard sees in it.
"""
import os
import sys

import tensorboard
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def scalars(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(path)
    events.Reload()
    for tag in events.Tags()["scalars"]:
        print(tag, [(e.step, e.value) for e in events.Scalars(tag)])


def main():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
    print("tensorboard", tensorboard.__version__)
    with open(os.path.join(here, "events.tfevents"), "wb") as f:
        writer = RecordWriter(f)

        def add(**fields):
            writer.write(event_pb2.Event(**fields).SerializeToString())

        add(wall_time=1700000000.25, file_version="brain.Event:2")
        add(wall_time=1700000000.25, step=101, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
        for step in (1, 127, 128, 300000):
            values = [summary_pb2.Summary.Value(tag="train/loss", simple_value=5.5 / step),
                      summary_pb2.Summary.Value(tag="train/lr", simple_value=3e-4)]
            add(wall_time=1700000000.5 + step, step=step, summary=summary_pb2.Summary(value=values))
        writer.flush()


scalars(sys.argv[1]) if len(sys.argv) > 1 else main()
