#!/usr/bin/env python3
"""heddle slurm and heddle k8s. The script for sbatch runs under an srun and an scontrol of this test's own, and queues itself again after the
exit codes that say so, and after no others. The manifest is strictly that of Kubernetes' published schema, where kubernetes-validate is
installed (pip install kubernetes-validate), knows heddle's exit codes, and what it runs in the pods trains here.
usage: launchers.py HEDDLE"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

heddle = os.path.abspath(sys.argv[1])
os.chdir(tempfile.mkdtemp(prefix="heddle-launchers-"))
PATIENCE = float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
APART = "comm={use: libfabric, provider: tcp}"
JOB = """job: {name: My_job.7, steps: 3}
model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}
data: {train: text, format: bytes, batch: 16, seq_len: 16, micro_batch: 1}
optimizer: {use: adamw, lr: 1e-3}
checkpoint: {}
"""
with open("text", "w", encoding="ascii") as f:
    f.write("the warp and the weft are woven into one cloth, again and again.\n" * 40)
with open("job.yaml", "w", encoding="utf-8") as f:
    f.write(JOB)


def expect(true, what):
    if not true:
        sys.exit(f"launchers: {what}")


def run(*words, code=0, env=None):
    made = subprocess.run([heddle, *words], capture_output=True, text=True, check=False, env=env)
    expect(made.returncode == code, f"exit code {made.returncode}, not {code}, of {' '.join(words)}:\n{made.stdout}{made.stderr}")
    return made


def refused(says, *words):
    made = run(*words, code=2)
    expect(says in made.stderr, f"{' '.join(words)} does not say '{says}':\n{made.stderr}")


# ---- slurm: an srun that says what it was started with, and ends with CODE, or by a signal with 3 as a rank does

os.mkdir("bin")
for name, text in {
    "srun": """#!/bin/bash
printf '%s\\n' "$@" >srun.words
env >srun.env
trap 'echo USR1 >>srun.signals; kill $sleep; exit 3' USR1
trap 'echo TERM >>srun.signals; kill $sleep; exit 3' TERM
[ "$CODE" ] && exit $CODE
sleep 60 >/dev/null 2>&1 & sleep=$!
wait
""",
    "scontrol": """#!/bin/bash
case $1 in
show) printf 'node7\\nnode8\\n' ;;
*) echo "$@" >>scontrol.words ;;
esac
"""}.items():
    with open(f"bin/{name}", "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(f"bin/{name}", 0o755)


def lines_of(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return f.read().splitlines()


def batch(code="", send=None, restarted=0):
    """Exit code of the script, and whether it asked to be queued again."""
    for path in ("srun.words", "srun.env", "srun.signals", "scontrol.words"):
        if os.path.exists(path):
            os.remove(path)
    env = {"PATH": f"{os.getcwd()}/bin:{os.environ['PATH']}", "CODE": code, "SLURM_JOB_ID": "1234567", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_CPUS_PER_TASK": "16"}
    if restarted:
        env["SLURM_RESTART_COUNT"] = str(restarted)
    job = subprocess.Popen(["bash", "job.sbatch"], env=env, stdout=subprocess.PIPE, text=True)
    if send:
        while not lines_of("srun.env"):
            time.sleep(0.01)
        time.sleep(0.2)
        job.send_signal(send)
    job.communicate(timeout=100 * PATIENCE)
    return job.returncode, lines_of("scontrol.words") == ["requeue 1234567"]


script = run("slurm", "job.yaml", "launch.restarts=2", "launch.time_limit=90m", "launch.ranks=2", "checkpoint.dir=it's here", APART,
             "data.pad_batch=always", "--nodes", "2:4").stdout
with open("job.sbatch", "w", encoding="utf-8") as f:
    f.write(script)
for line in ("--job-name=My_job.7", "--nodes=2-4", "--ntasks-per-node=2", "--time=90", "--requeue", "--signal=B:USR1@120"):
    expect(f"#SBATCH {line}\n" in script, f"no {line} in\n{script}")
for code, send, restarted, want in (("0", None, 0, (0, False)), ("2", None, 0, (2, False)), ("1", None, 5, (0, True)),  # after time limits
                                    ("137", None, 6, (0, True)), ("1", None, 7, (1, False)), ("1", None, 0, (0, True)),
                                    ("1", None, 1, (0, True)), ("3", None, 2, (0, True)), ("1", None, 3, (0, True)),
                                    ("0", None, 4, (0, False)), ("", signal.SIGUSR1, 5, (0, True)), ("", signal.SIGTERM, 0, (3, False))):
    got = batch(code, send, restarted)
    expect(got == want, f"srun ended with {code or send}, restart {restarted}: exit code and requeue are {got}, not {want}")
    expect(not send or lines_of("srun.signals") == [send.name[3:]], f"srun got {lines_of('srun.signals')}")
expect(not os.path.exists("My_job.7-1234567.failures"), "failures before a state that was saved still count")
words = lines_of("srun.words")
expect(words[-8:] == ["train", "job.yaml", "launch.restarts=2", "launch.time_limit=90m", "launch.ranks=2", "checkpoint.dir=it's here", APART,
                      "data.pad_batch=always"], words)
env = dict(line.split("=", 1) for line in lines_of("srun.env") if "=" in line)
expect(env["MASTER_ADDR"] == "node7" and env["MASTER_PORT"] == "34567" and len(env["HEDDLE_SECRET"]) == 64, env)
expect(env.get("SRUN_CPUS_PER_TASK") == "16", "srun is not told --cpus-per-task of sbatch")
refused("8 ranks are not pp 1 x dp 2", "slurm", "job.yaml", "mesh.dp=2", "--nodes", "4")
refused("comm-shm works inside one machine only, and dp_shard connects machines", "slurm", "job.yaml", "--nodes", "2")
refused("so the job would fail where Slurm gives 3 machines", "slurm", "job.yaml", APART, "--nodes", "2:4")
refused("launch.rendezvous is node1:29400, and the script", "slurm", "job.yaml", APART, "launch.nodes=2", "launch.rendezvous='node1:29400'")
for words, nodes, tasks in (((), "2-4", 2), (("--nodes", "2"), "2", 2), (("--per-machine", "4"), "2-4", 4)):
    text = run("slurm", "job.yaml", "launch.nodes='2:4'", "launch.ranks=2", APART, *words).stdout
    expect(f"--nodes={nodes}\n#SBATCH --ntasks-per-node={tasks}\n" in text, f"launch.nodes=2:4 and {words}:\n{text}")
for words, alone in (("slurm --nodes 1", 1), ("slurm --nodes 2", 0), ("slurm --nodes 2:3", 0), ("k8s --pods 1", 1), ("k8s --pods 2", 0)):
    command, *machines = words.split()  # the ranks of all machines count
    said = run(command, "job.yaml", APART, "data.pad_batch=always", *machines).stderr
    expect(("comm.use has no effect where the number of ranks is 1" in said) == alone, f"{words} says:\n{said}")
for nodes in ("0", "4:2", "2:", "x", "-1"):
    refused(f"--nodes {nodes}: a number of machines is wanted", "slurm", "job.yaml", "--nodes", nodes)
refused("--signal 0: seconds are wanted", "slurm", "job.yaml", "--signal", "0")
for limit, margin, least in (("90s", "120", 3), ("30s", "1", 1), ("179s", "120", 3), ("30m", "1800", 31), ("30m", "3600", 61)):
    refused(f"command line: launch.time_limit: Slurm counts minutes, and would signal at the start, {margin} s before the end: give {least} min",
            "slurm", "job.yaml", f"launch.time_limit={limit}", "launch.margin=1s", "--signal", margin)
    run("slurm", "job.yaml", f"launch.time_limit={least}m", "launch.margin=1s", "--signal", margin)
with open("none.yaml", "w", encoding="utf-8") as f:
    f.write(JOB.replace("checkpoint: {}\n", ""))
for command in ("slurm", "k8s"):
    refused("none.yaml has no checkpoint section", command, "none.yaml")
    for resume, says in (("overwrite", "each start would begin there anew: leave it out"), ("never", "the second start would be refused"),
                         ("a/step-00000004", "leave it out, and copy that checkpoint to runs/My_job.7/checkpoints, where auto goes on from it")):
        named = refused if resume == "overwrite" else lambda words, *args: expect(words in run(*args).stderr, f"{args}: not named: {words}")
        named(f"command line: checkpoint.resume is {resume}, and what is printed starts the job again after whatever ends it: ",
              command, "job.yaml", f"checkpoint.resume={resume}")
        named(says, command, "job.yaml", f"checkpoint.resume={resume}")
expect("#SBATCH --cpus-per-task=8\n" in run("slurm", "job.yaml", "device.threads=8").stdout, "device.threads is not told to Slurm")
without = run("slurm", "job.yaml", "device={use: cpu}")
expect("--cpus-per-task=N a rank gets one core\n" in without.stdout and "device.threads is not set, and Slurm" in without.stderr, without)
refused("--nodes 3: launch.nodes is 2: make them equal", "slurm", "job.yaml", APART, "launch.nodes=2", "--nodes", "3")
for folder in ("/tmp/x", "/var/tmp/x", "/dev/shm/x"):
    said = run("slurm", "job.yaml", f"checkpoint.dir={folder}").stderr
    expect(f"checkpoint.dir: {folder} is each machine's own as a rule" in said, said)
expect("checkpoint.dir: ck-%j: Slurm replaces % in its own options alone" in run("slurm", "job.yaml", "checkpoint.dir=ck-%j").stderr, "ck-%j")

# ---- k8s

refused("8 ranks are not pp 1 x dp 2", "k8s", "job.yaml", "mesh.dp=2", "--pods", "4")
refused("comm-shm works inside one machine only, and dp_shard connects machines", "k8s", "job.yaml", "--pods", "2")
refused("--pods 0: a number of pods is wanted", "k8s", "job.yaml", "--pods", "0")
refused("--image a b: letters, digits and", "k8s", "job.yaml", "--image", "a b")
for image in ("Foo/Bar", "foo/Bar:v1", "reg.io/Foo", "Foo", f"foo/Bar@sha256:{64 * 'a'}"):
    refused(f"--image {image}: the name of an image is in lower case", "k8s", "job.yaml", "--image", image)
for image in ("foo/bar:V1", "Reg.io/foo", "REG:5000/x:A"):
    run("k8s", "job.yaml", "--image", image)
for size in ("lots", "0Gi", "-1Gi", "100GiB", "Gi", "100", "1023Ki", "1M"):
    refused(f"--storage {size}: a size of 1Mi or more is wanted, with its unit", "k8s", "job.yaml", "--storage", size)
refused("--storage is given an empty value", "k8s", "job.yaml", "--storage", "")
refused("--pods 2: launch.nodes is 4: make them equal", "k8s", "job.yaml", APART, "launch.nodes=4", "--pods", "2")
refused("launch.rendezvous is node1:29400, and pods meet", "k8s", "job.yaml", APART, "launch.nodes=2", "launch.rendezvous='node1:29400'")
for size in ("1Mi", "1024Ki", "1048576", "2M"):
    run("k8s", "job.yaml", "--storage", size)
text = run("k8s", "job.yaml", APART, "launch.ranks=2", "launch.nodes='1:2'", "--storage", "1.5Ti").stdout
expect("completions: 2\n" in text and "NNODES, value: '1:2'" in text and "storage: 1.5Ti\n" in text, text)
refused("--folder work: a path in the pods is wanted", "k8s", "job.yaml", "--folder", "work")
for path in (os.path.abspath("job.yaml"), f"../{os.path.basename(os.getcwd())}/job.yaml"):
    refused("name the job as the pods see it", "k8s", path)
# What a pod writes outside the volume ends with it.
for word in ("checkpoint.dir=/other/place", "checkpoint.dir=../up", "checkpoint.dir=/work/../x", "checkpoint.dir=/workers", "checkpoint.dir=a/../../b",
             "metrics.jsonl=/x/y.jsonl", "metrics.tensorboard=/x"):
    key, path = word.split("=")
    refused(f"{key}: {path} is not in the volume, which pods see at /work (--folder), and would be lost with its pod", "k8s", "job.yaml", word)
refused("metrics.trace: /x/t.json is not in the volume", "k8s", "job.yaml", "metrics.trace={file: /x/t.json, steps: 1-2}")
refused("dir: /x/tb is not in the volume", "k8s", "job.yaml", "metrics.sinks=[{use: tensorboard, dir: /x/tb}]")
for words in (["checkpoint.dir=/work/runs"], ["checkpoint.dir=a/../b/./c"], ["checkpoint.dir=/other/place", "--folder", "/other/"],
              ["metrics.jsonl=/dev/stdout"], ["checkpoint.dir=/x", "--folder", "/x"]):
    said = run("k8s", "job.yaml", *words).stderr
    expect("volume" not in said, said)
for key in ("data.train", "data.test", "data.tokenizer"):
    said = run("k8s", "job.yaml", f"{key}=/abs/file").stderr
    expect(f"{key}: /abs/file is not in the volume" in said, said)
said = run("k8s", "job.yaml", "data.cache=/x/tokens").stderr
expect("data.cache: /x/tokens is not in the volume" in said and "each pod tokenizes for itself" in said, said)
for address, inside in (("127.0.0.1", 1), ("0.0.0.0", 0)):
    said = run("k8s", "job.yaml", f"metrics.sinks=[{{use: prometheus, port: 9464, address: {address}}}]").stderr
    expect(("127.0.0.1 is inside the pod, where Prometheus cannot scrape it: say 0.0.0.0" in said) == inside, said)
# Kubernetes makes one $ of two, kubectl's YAML a boolean of yes.
text = run("k8s", "job.yaml", 'watch.command=kill $$ "$(NAME)"; it\'s\na\\b', "job.name=yes").stdout
expect(r'''"watch.command=kill $$$$ \"$$(NAME)\"; it's\x0aa\\b"''' in text, text)
expect("name: heddle-yes\n" in text and "name: yes\n" not in text, text)
text = run("k8s", "job.yaml", "job.name=No_").stdout
expect("name: heddle-no\n" in text and "name: no\n" not in text, text)
try:
    import yaml
except ImportError:
    sys.exit(0)  # what follows reads the manifest
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None


def manifest(*words):
    documents = list(yaml.safe_load_all(run("k8s", "job.yaml", *words).stdout))
    expect([d["kind"] for d in documents] == ["Service", "PersistentVolumeClaim", "Job"], documents)
    for document in documents:
        if kubernetes_validate:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        expect(document["metadata"]["name"] == "my-job-7", document["metadata"])
    return documents


def pod_environment(container, index):
    env = {**os.environ, "JOB_COMPLETION_INDEX": str(index)}  # Kubernetes' own
    for row in container.get("env", []):
        env[row["name"]] = row["value"] if "value" in row else {"secret": "0123456789abcdef" * 4}[row["valueFrom"]["secretKeyRef"]["key"]]
    return env


service, claim, job = manifest("launch.ranks=2", "launch.restarts=3", APART, "--pods", "2", "--storage", "5Gi")
spec, template = job["spec"], job["spec"]["template"]["spec"]
expect(spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2 and spec["backoffLimit"] == 6, spec)
actions = {rule["onExitCodes"]["values"][0] if "onExitCodes" in rule else "lost": rule["action"] for rule in spec["podFailurePolicy"]["rules"]}
expect(actions == {2: "FailJob", 3: "Ignore", "lost": "Ignore"}, actions)
expect(service["spec"]["clusterIP"] == "None" and template["subdomain"] == service["metadata"]["name"], service)
expect(claim["spec"]["accessModes"] == ["ReadWriteMany"] and claim["spec"]["resources"]["requests"]["storage"] == "5Gi", claim)
container = template["containers"][0]
if "TSAN_OPTIONS" in os.environ:  # a forked rank's thread has the address of an agent's, which TSan takes for alive
    print("launchers: the pods did not run, since TSan does not know which threads a fork leaves behind")
    sys.exit(0)
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
pods = []
for index in range(2):
    env = pod_environment(container, index)
    expect(env["MASTER_ADDR"] == "my-job-7-0.my-job-7", env["MASTER_ADDR"])
    env.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})  # there is no such name here
    pods.append(subprocess.Popen([heddle, *container["command"][1:]], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
for pod in pods:
    out = pod.communicate(timeout=100 * PATIENCE)[0]
    expect(pod.returncode == 0, f"a pod's command ended with {pod.returncode}:\n{out}")
    expect(pod is not pods[0] or "4 ranks" in out, out)
service, claim, job = manifest("job.steps=4", "launch.ranks=2")
container = job["spec"]["template"]["spec"]["containers"][0]
expect(claim["spec"]["accessModes"] == ["ReadWriteOnce"] and job["spec"]["completions"] == 1, claim)
out = run(*container["command"][1:], env=pod_environment(container, 0)).stdout
expect("2 ranks" in out and "resuming from step 3" in out, out)
