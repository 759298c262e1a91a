#!/usr/bin/env python3
"""Starts small training jobs, does one fault to one rank of each at a given moment, and holds the end against the same job
undisturbed. Run by hand: all cells take some 30 minutes on two cores; neither CI nor ./run-tests --long has it.

    tests/long/recover.py                            # all cells
    tests/long/recover.py --list                     # their names: FAULT/MOMENT/MESH/TRANSPORT
    tests/long/recover.py --only stop/eval           # those whose name has this text
    tests/long/recover.py --heddle build/heddle --seed 7

A cell has recovered if the job ended with exit code 0, metrics.jsonl has each step with the loss of the undisturbed run (the same
bits with job.deterministic=exact, else to 1e-6), `heddle ckpt diff` finds no difference between both last checkpoints, the log
names the rank that was struck, in time, and no process is left. heddle restarts ranks that it has started itself; those of mpirun
end with exit code 1, and this script gives the same command again, which has to go on from the newest checkpoint.

A step that the job went on from may lack its row where rank 0 was struck, and its val_loss in any case (docs/running.md,
docs/elastic.md).

    kill, segv, abrt   the signal
    stop               SIGSTOP, which liveness.dead_after has to notice
    disk               the file system of checkpoint.dir is filled until a save has failed, and then emptied. It is a tmpfs
                       in a mount namespace of this script's own, so these cells need root; they are left out otherwise

    start              once the ranks are there, before step 1 has ended (disk: full before the first save)
    middle             in a step, chosen by --seed as the rank is
    save               while a checkpoint is written
    eval               while an evaluation runs
    last               in the last step

A fault counts where log and files show that it struck at that moment: else the cell is tried again, three times in all, and then
reported as "not struck". That counts as failed, too. SEED chooses ranks and moments; timing makes each run another. One line a
cell, and at the end `N passed, N failed`; the exit code is 1 if any failed. Files of cells that failed are kept.
"""
import argparse
import ctypes
import itertools
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
LIBC = ctypes.CDLL(None, use_errno=True)

STEPS, EVAL_AT, SAVE_EVERY = 20, 13, 5
JOB = f"""
job:        {{steps: {STEPS}, seed: 1337}}
device:     {{use: cpu, threads: 1}}
optimizer:  {{use: adamw, lr: 1e-3, clip: 1.0}}
model:      {{use: transformer, family: llama, layers: 4, hidden: 192, heads: 4, kv_heads: 2, ffn: 384, vocab: 256}}
data:       {{train: corpus.txt, val_fraction: 0.2, seq_len: 64, batch: 12, micro_batch: 1}}
eval:       {{every: {EVAL_AT}, batches: 30}}
checkpoint: {{every: {SAVE_EVERY}, keep: 1}}
comm:       {{timeout: 20s}}
liveness:   {{dead_after: 2s, late_after: 5s}}
launch:     {{restarts: 3, pause: 10ms}}
"""

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segv": signal.SIGSEGV, "abrt": signal.SIGABRT}
FAULTS = [*SIGNALS, "disk"]
MOMENTS = ["start", "middle", "save", "eval", "last"]
EXACT = ["job.deterministic=exact", "data.batch=16"]
CUT = 'strategies=[{"use":"3d"},{"use":"zero"}]'
MESHES = {  # ranks, words of the job
    "dp2-zero0": (2, ["mesh.dp=2", "strategies.zero.stage=0", *EXACT]),
    "dp3-zero3": (3, ["mesh.dp=3", "strategies.zero.stage=3"]),
    "tp2": (2, ["mesh.tp=2", CUT]),
    "pp2": (2, ["mesh.pp=2", CUT]),
    "dp2-tp2": (4, ["mesh.dp=2", "mesh.tp=2", CUT]),
}
TRANSPORTS = {
    "shm": ["comm.use=shm"],
    "libfabric": ["comm.use=libfabric", "comm.provider=tcp"],
    "mpi": ["comm.use=mpi"],
}
LAUNCHERS = re.compile(r"RANK|WORLD_SIZE|LOCAL_|MASTER_|NNODES|NODE_RANK|JOB_COMPLETION|SLURM_|OMPI_|PMI|MPI_|HEDDLE_|TORCHELASTIC_")

TRIES = 3
STARTS = 4  # of a job whose ranks mpirun starts: launch.restarts, by hand
JOB_SECONDS = 90
NOTICE_SECONDS = 15  # four times liveness.dead_after, of a busy machine, and what it takes to say so
START_SECONDS = 35  # comm.timeout, for ranks that have not met yet
DISK_BYTES = 64 << 20  # a checkpoint has 17 MB: two of them and one that is written
FULL = "No space left on device"


class NotStruck(Exception):
    """The fault did not hit what it was to hit."""


class NotRecovered(Exception):
    """What is wrong with the end of the job."""


class Cell:
    def __init__(self, fault, moment, mesh, transport):
        self.fault, self.moment, self.mesh, self.transport = fault, moment, mesh, transport
        self.name = "/".join((fault, moment, mesh, transport))
        self.ranks = MESHES[mesh][0]
        self.exact = EXACT[0] in MESHES[mesh][1]

    def words(self):
        return [*MESHES[self.mesh][1], *TRANSPORTS[self.transport]]


def all_cells():
    return [Cell(*axes) for axes in itertools.product(FAULTS, MOMENTS, MESHES, TRANSPORTS)]


# ---- processes


def process_state(pid):
    """State letter and start time, which tells a process from a later one of the same number; none once it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except OSError:
        return None


def is_alive(pid, born):
    state = process_state(pid)
    return state is not None and state[0] not in "ZX" and state[1] == born


def children_of(pid):
    try:
        return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants_of(pid):
    for child in children_of(pid):
        yield child
        yield from descendants_of(child)


def rank_of_mpirun(pid, heddle):
    """The rank that this process is, or none: a supervisor, mpirun, or a child of mpirun before it became heddle."""
    try:
        if os.readlink(f"/proc/{pid}/exe") != str(heddle):
            return None
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for word in environment:
        if word.startswith(b"OMPI_COMM_WORLD_RANK="):
            return int(word.partition(b"=")[2])
    return None


def clean_environment():
    return {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}


def die_with_this_script():
    PR_SET_PDEATHSIG = 1
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Run:
    """A job of heddle: its launcher, which may be started several times, and what it says."""

    def __init__(self, heddle, folder, name, cell, more=()):
        self.heddle, self.folder, self.cell = heddle, folder, cell
        self.log = folder / f"{name}.log"
        self.out = folder / f"{name}.out"
        self.metrics = folder / "runs" / name / "metrics.jsonl"
        self.saves = folder / "saves" / name
        self.words = ["train", "job.yaml", f"job.name={name}", f"checkpoint.dir={self.saves}", *cell.words(), *more]
        self.seen = {}
        self.chosen_save = 1
        self.saved_before = 0
        self.starts = 0
        self.start()

    def start(self):
        with open(self.out, "ab") as out, open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.heddle, *self.words], cwd=self.folder, env=clean_environment(), stdout=out,
                                            stderr=log, stdin=subprocess.DEVNULL, preexec_fn=die_with_this_script)
        self.starts += 1
        self.until = time.monotonic() + JOB_SECONDS
        self.remember(self.process.pid)

    def remember(self, pid):
        state = process_state(pid)
        if state:
            self.seen[pid] = state[1]

    def code(self):
        """Exit code, or none while it runs."""
        if self.process.poll() is None and time.monotonic() > self.until:
            raise NotRecovered(f"the job did not end within {JOB_SECONDS} s")
        return self.process.poll()

    def said(self):
        return self.log.read_text(errors="replace")

    def rows(self):
        try:
            return [json.loads(line) for line in self.metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
        except OSError:
            return []

    def steps(self):
        return {row["step"]: row for row in self.rows() if "step" in row and "event" not in row}

    def rank_pids(self):
        """By rank, those that are there."""
        children = children_of(self.process.pid)
        if self.cell.transport == "mpi":
            ranks = {rank_of_mpirun(pid, self.heddle): pid for pid in descendants_of(self.process.pid)}
            return {rank: pid for rank, pid in ranks.items() if rank is not None}
        return dict(enumerate(children))

    def unfinished_saves(self):
        try:
            return {name for name in os.listdir(self.saves) if name.startswith(".tmp-step-")}
        except OSError:
            return set()

    def newest_save(self):
        names = os.listdir(self.saves) if self.saves.is_dir() else []
        return max((int(name[5:]) for name in names if name.startswith("step-")), default=0)

    def wait_for(self, condition, what):
        """What the condition returns, once it is something; the job must still run."""
        while True:
            ended, found = self.code() is not None, condition()
            if found:
                return found
            if ended:
                raise NotStruck(f"the job ended before {what}")
            time.sleep(0.001)

    def wait(self):
        while self.code() is None:
            for pid in descendants_of(self.process.pid):
                if pid not in self.seen:
                    self.remember(pid)
            time.sleep(0.01)
        return self.code()

    def left(self):
        return [pid for pid, born in self.seen.items() if is_alive(pid, born)]

    def wait_for_the_others(self, seconds):
        until = time.monotonic() + seconds
        while self.left() and time.monotonic() < until:
            time.sleep(0.02)
        return self.left()

    def end(self):
        """Whatever still runs of it."""
        if self.process.poll() is None:
            for pid in descendants_of(self.process.pid):
                self.remember(pid)
            self.process.kill()
            self.process.wait()
        for pid in self.wait_for_the_others(6):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


# ---- a disk that gets full


def libc(function, *arguments):
    if getattr(LIBC, function)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{function}: {os.strerror(error)}")


def enter_mount_namespace():
    """Mounts made from here on are seen by this script and its children alone, and go with them."""
    CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
    libc("unshare", CLONE_NEWNS)
    libc("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)


class Disk:
    def __init__(self, folder):
        self.folder, self.ballast = folder, folder / "ballast"
        folder.mkdir(parents=True)
        libc("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), f"size={DISK_BYTES}".encode())

    def leave(self, size):
        """So much is free, so that a save which runs has no more than it needs once a little of it is taken."""
        with open(self.ballast, "ab") as file:
            os.posix_fallocate(file.fileno(), 0, DISK_BYTES - size)

    def fill(self):
        with open(self.ballast, "ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                block = bytes(size)
                while self.has_taken(file, block):
                    pass

    @staticmethod
    def has_taken(file, block):
        try:
            return file.write(block) == len(block)
        except OSError:
            return False

    def free(self):
        self.ballast.unlink(missing_ok=True)

    def unmount(self):
        MNT_DETACH = 2
        LIBC.umount2(os.fsencode(self.folder), MNT_DETACH)


# ---- moments: each waits for its own, and returns what tells whether it is still that moment


def no_step_is_done(run, chance):
    run.wait_for(lambda: len(run.rank_pids()) == run.cell.ranks, "its ranks were there")
    time.sleep(chance.choice((0, 0.02, 0.1, 0.3)) * chance.random())
    return lambda: not run.steps()


def wait_for_step(run, step):
    """Until it is logged; returns the seconds that it took."""
    row = run.wait_for(lambda: run.steps().get(step), f"step {step} was seen")
    return row["step_s"]


def step_runs(run, chance):
    before = chance.choice([step for step in range(2, STEPS - 3) if step + 1 != EVAL_AT])
    time.sleep(wait_for_step(run, before) * 0.8 * chance.random())
    return lambda: STEPS not in run.steps()


def save_runs(run, chance):
    first = run.saves / f"step-{SAVE_EVERY:08d}"
    run.wait_for(lambda: run.chosen_save == 1 or first.exists(), "its first save was done")
    name = run.wait_for(run.unfinished_saves, "a save was seen")
    return lambda: name & run.unfinished_saves()


def evaluation_runs(run, chance):
    time.sleep(wait_for_step(run, EVAL_AT - 1) * (1.5 + 2 * chance.random()))
    return lambda: EVAL_AT not in run.steps()


def last_step_runs(run, chance):
    time.sleep(wait_for_step(run, STEPS - 1) * 0.5 * chance.random())
    return lambda: STEPS not in run.steps()


WAIT_FOR = {"start": no_step_is_done, "middle": step_runs, "save": save_runs, "eval": evaluation_runs, "last": last_step_runs}


# ---- faults


def strike_rank(run, rank, chance):
    """Returns the number of the process that has got the signal, and when."""
    is_still = WAIT_FOR[run.cell.moment](run, chance)
    pids = run.rank_pids()
    for pid in pids.values():
        run.remember(pid)
    if rank not in pids or not is_still():
        raise NotStruck("the moment was over")
    run.saved_before = run.newest_save()
    os.kill(pids[rank], SIGNALS[run.cell.fault])
    struck = time.monotonic()
    if not is_still():
        raise NotStruck("the moment was over")
    return pids[rank], struck


def names_of_the_fault(cell, rank, pid):
    """What the log may say of it, as expressions."""
    unmet = [rf"rank {rank} did not connect within", rf"before ranks? .*\b{rank}\b.* had come"] if cell.moment == "start" else []
    if cell.fault == "stop":
        return [rf"rank {rank} \(process {pid}\) had been stopped by a signal", rf"rank {rank} died \(silent", *unmet]
    number = int(SIGNALS[cell.fault])
    return [rf"rank {rank} \(process {pid}\) was killed by signal {number} ", rf"rank {rank} died",
            rf"mpirun noticed that process rank {rank} .* exited on signal {number} ", *unmet]


def wait_until_named(run, rank, pid, struck):
    expected = names_of_the_fault(run.cell, rank, pid)
    limit = START_SECONDS if run.cell.moment == "start" else NOTICE_SECONDS
    while not any(re.search(words, run.said()) for words in expected):
        ended = run.code() is not None
        if ended and any(re.search(words, run.said()) for words in expected):
            return
        if ended and run.code() == 0 and "are started again" not in run.said():
            raise NotStruck("the job ended by itself")
        if ended:
            raise NotRecovered(f"exit code {run.code()}, and the log does not name rank {rank}")
        if time.monotonic() > struck + limit:
            raise NotRecovered(f"{limit} s later the log does not name rank {rank}")
        time.sleep(0.01)


def place_of_the_fault(run):
    """The log of the first failure."""
    return run.said().partition("are started again")[0]


def expect_process_named(run, rank, pid):
    """heddle's launcher has seen that process end; mpirun tells no process."""
    line = names_of_the_fault(run.cell, rank, pid)[0]
    if run.cell.transport != "mpi" and not re.search(line, run.said()):
        raise NotRecovered(f"the log does not have {line!r}")


def expect_place(run):
    """Ranks that are left say where they were. Copies of the model notice it between two batches of it, outside sections."""
    if run.cell.moment == "eval" and not re.search(rf"at step {EVAL_AT}, (section eval|between)", place_of_the_fault(run)):
        raise NotStruck("the log has no rank in an evaluation")
    if run.cell.moment == "last" and f"at step {STEPS}," not in place_of_the_fault(run):
        raise NotStruck("the log has no rank in the last step")


def do_signal(run, rank, chance):
    pid, struck = strike_rank(run, rank, chance)
    wait_until_named(run, rank, pid, struck)
    return pid


def size_of_save(whole):
    return sum(path.stat().st_size for path in (whole.saves / f"step-{STEPS:08d}").iterdir())


def fill_disk(run, disk, chance):
    is_still = WAIT_FOR[run.cell.moment](run, chance)
    run.saved_before = run.newest_save()
    if run.cell.moment == "save":
        saved = run.unfinished_saves()
        disk.fill()
        return saved
    disk.fill()
    if not is_still():
        raise NotStruck("the moment was over")
    return set()


def failed_writes(run):
    """Lines about a checkpoint's files; a lock's text that has no place is but warned of."""
    return [line for line in run.said().splitlines() if FULL in line and "/.tmp-step-" in line]


def do_disk(run, disk, chance):
    expected = fill_disk(run, disk, chance)
    run.wait_for(lambda: failed_writes(run), "a write failed")
    if expected and not any(name in failed_writes(run)[0] for name in expected):
        raise NotStruck("another save failed than the one that was seen")
    if chance.random() < 0.5 and run.cell.transport != "mpi":  # another round finds it full
        until = time.monotonic() + 3
        while count_restarts(run) < 2 and time.monotonic() < until and run.code() is None:
            time.sleep(0.01)
    disk.free()


# ---- the end


def start_again(run):
    """What heddle leaves to the caller where mpirun has started the ranks."""
    code = run.wait()
    while run.cell.transport == "mpi" and code == 1 and run.starts < STARTS:
        run.start()
        code = run.wait()
    if code:
        raise NotRecovered(f"exit code {code}")


def count_restarts(run):
    return run.said().count("are started again") + run.starts - 1


def resumed_steps(run):
    """Those that were saved after the fault, and the last one, behind which there was nothing to train."""
    return {int(step) for step in re.findall(r"(?:resuming from|its checkpoint is at) step (\d+) ", run.out.read_text(errors="replace"))}


def expect_no_save_lost(run):
    steps = resumed_steps(run)
    if run.saved_before > max(steps, default=0):
        raise NotRecovered(f"step {run.saved_before} was saved, and it went on from {max(steps, default='the beginning')}")


def may_lack(run, step, rank, key):
    return step in resumed_steps(run) and (key == "val_loss" or rank == 0)


def expect_same(a, b, exact, where):
    if a != b if exact else abs(a - b) > 1e-6 * abs(b):
        raise NotRecovered(f"{where} is {a!r}, undisturbed {b!r}")


def expect_same_losses(run, whole, rank):
    have, want = run.steps(), whole.steps()
    for step, row in want.items():
        if step not in have:
            if not may_lack(run, step, rank, "row"):
                raise NotRecovered(f"the metrics have no step {step}")
            continue
        for key in {"loss", "grad_norm", "val_loss"} & row.keys():
            if key in have[step]:
                expect_same(have[step][key], row[key], run.cell.exact, f"{key} of step {step}")
            elif not may_lack(run, step, rank, key):
                raise NotRecovered(f"the metrics have no {key} of step {step}")
    if len([row for row in run.rows() if "step" in row and "event" not in row]) != len(have):
        raise NotRecovered("the metrics have a step twice")


def expect_same_checkpoint(run, whole):
    last = f"step-{STEPS:08d}"
    done = subprocess.run([run.heddle, "ckpt", "diff", whole.saves / last, run.saves / last], capture_output=True, text=True,
                          env=clean_environment(), timeout=JOB_SECONDS)
    if done.returncode:
        raise NotRecovered(f"ckpt diff: {(done.stdout + done.stderr).strip()[-300:]}")


def expect_nothing_left(run):
    left = run.wait_for_the_others(10)
    if left:
        raise NotRecovered(f"process {left[0]} is left")


# ---- cells


def undisturbed(heddle, folder, cell, known):
    """The same job without a fault, trained once for each mesh and transport."""
    name = f"whole-{cell.mesh}-{cell.transport}"
    if name not in known:
        run = Run(heddle, folder, name, cell)
        try:
            if run.wait() or len(run.steps()) != STEPS:
                raise NotRecovered(f"undisturbed it ends with exit code {run.code()}: {run.said()[-300:]}")
        finally:
            run.end()
        known[name] = run
    return known[name]


def try_cell(cell, run, rank, disk, chance):
    """One try: raises, or the job has been struck and has ended well."""
    if disk:
        do_disk(run, disk, chance)
        start_again(run)
    else:
        pid = do_signal(run, rank, chance)
        start_again(run)
        expect_process_named(run, rank, pid)
        expect_place(run)
    if not count_restarts(run):
        raise NotStruck("nothing was started again")


def one_try(cell, whole, seed, attempt):
    """Restarts; raises NotStruck or NotRecovered."""
    heddle, folder = whole.heddle, whole.folder
    chance = random.Random(f"{seed} {cell.name} {attempt}")
    rank = None if cell.fault == "disk" else chance.randrange(cell.ranks)
    more = [f"checkpoint.async={chance.choice(('true', 'false'))}", f"launch.pause={'500ms' if cell.fault == 'disk' else '10ms'}"]
    name = f"{cell.name.replace('/', '-')}-{attempt}"
    disk = Disk(folder / "saves" / name) if cell.fault == "disk" else None
    saves = chance.choice((1, 2))
    if disk and cell.moment == "save":
        disk.leave(saves * size_of_save(whole) + (3 << 20))
    run = Run(heddle, folder, name, cell, more)
    run.chosen_save = saves
    try:
        try_cell(cell, run, rank, disk, chance)
        expect_no_save_lost(run)
        expect_same_losses(run, whole, rank)
        expect_same_checkpoint(run, whole)
        expect_nothing_left(run)
        return count_restarts(run)
    finally:
        run.end()
        if disk:
            disk.unmount()


def remove_files(cell, folder):
    for path in (*folder.glob(f"{cell.name.replace('/', '-')}-*"), *folder.glob(f"*/{cell.name.replace('/', '-')}-*")):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def tried(cell, whole, seed):
    """What became of it, and restarts."""
    words = ""
    for attempt in range(TRIES):
        try:
            restarts = one_try(cell, whole, seed, attempt)
            return "recovered" + f" in try {attempt + 1}" * (attempt > 0), restarts
        except NotStruck as why:
            words = f"not struck: {why}"
        except NotRecovered as why:
            return f"NOT RECOVERED: {why}", 0
    return words, 0


def run_cell(cell, heddle, folder, known, seed):
    """Whether it recovered."""
    began = time.monotonic()
    try:
        whole = undisturbed(heddle, folder, cell, known)
        began = time.monotonic()
        words, restarts = tried(cell, whole, seed)
    except NotRecovered as why:
        words, restarts = f"NOT RECOVERED: {why}", 0
    print(f"{cell.name:34}  {words}  {time.monotonic() - began:.1f} s  {restarts} restarts", flush=True)
    recovered = words.startswith("recovered")
    if recovered:
        remove_files(cell, folder)
    return recovered


def write_files(folder, job=JOB):
    chance = random.Random(1)
    words = "the warp is set and a weft goes over one under by heddle lifts its thread until cloth falls from loom to beam".split()
    (folder / "corpus.txt").write_text(" ".join(chance.choice(words) for _ in range(60000)))
    (folder / "job.yaml").write_text(job)


def run_cells(cells, heddle, seed):
    """How many passed and failed."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="heddle-recover-"))
    known, passed, failed = {}, 0, 0
    try:
        write_files(folder)
        for cell in cells:
            if run_cell(cell, heddle, folder, known, seed):
                passed += 1
            else:
                failed += 1
    finally:
        if failed:
            print(f"files of cells that failed: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return passed, failed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heddle", type=pathlib.Path, default=TOP / "build/heddle", metavar="PATH", help="default build/heddle")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cells whose name has it")
    parser.add_argument("--list", action="store_true", help="prints the names of the cells")
    parser.add_argument("--seed", type=int, default=1, help="chooses ranks and moments (1)")
    args = parser.parse_args()
    args.heddle = args.heddle.resolve()
    if not args.list and not os.access(args.heddle, os.X_OK):
        parser.error(f"{args.heddle} cannot be run: --heddle says which to take")
    return args


def without_disks(cells):
    """Where no tmpfs can be mounted."""
    try:
        enter_mount_namespace()
        return cells
    except OSError as why:
        print(f"cells with a full disk are left out: {why}")
        return [cell for cell in cells if cell.fault != "disk"]


def main():
    args = arguments()
    cells = [cell for cell in all_cells() if args.only in cell.name]
    if args.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    if not cells:
        sys.exit(f"no cell's name has {args.only!r}: --list prints them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if any(cell.fault == "disk" for cell in cells):
        cells = without_disks(cells)
    passed, failed = run_cells(cells, args.heddle, args.seed)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
