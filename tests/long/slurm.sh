#!/bin/bash
# A job over comm-mpi on two Slurm nodes, started by srun --mpi=pmix: real slurmd daemons, each in a network, host name and
# mount namespace of its own, on one machine. Not part of CI. As root, with
#     apt-get install slurmd slurmctld slurm-client slurm-wlm-basic-plugins munge iproute2
#     tests/long/slurm.sh BUILD
# Shows that four ranks on two nodes train with the bits of four local ones, and that a rank that is killed is named and ends
# the job on both nodes. Takes half a minute, five at most; leaves nothing.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd) || exit 2
bridge=hdslurm
for tool in slurmctld slurmd srun munged ip nsenter; do
    command -v $tool >/dev/null || { echo "slurm.sh: $tool is missing" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "slurm.sh: needs root" >&2; exit 2; }
dir=$(mktemp -d /tmp/heddle-slurm-XXXXXX)
started=()

cleanup() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null; done
    sleep 1
    for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null; done
    wait 2>/dev/null
    for n in n1 n2; do # slurmstepd outlives its slurmd
        for pid in $(ip netns pids $bridge-$n 2>/dev/null); do kill -KILL "$pid" 2>/dev/null; done
        ip netns del $bridge-$n 2>/dev/null
    done
    for link in hds1 hds2 $bridge; do ip link del $link 2>/dev/null; done
    rmdir /run/heddle-slurm.n1 /run/heddle-slurm.n2 2>/dev/null
    rm -rf "$dir"
}
trap cleanup EXIT
fail() { echo "slurm.sh: $*" >&2; tail -n 5 "$dir"/log/* >&2; exit 1; }

# ---- two nodes on a bridge, 10.99.7.1 and 10.99.7.2; the controller is 10.99.7.254

ip link add $bridge type bridge && ip addr add 10.99.7.254/24 dev $bridge && ip link set $bridge up || fail "no bridge"
for i in 1 2; do
    ip netns add $bridge-n$i &&
        ip link add hds$i type veth peer name eth0 netns $bridge-n$i && ip link set hds$i master $bridge up &&
        ip -n $bridge-n$i addr add 10.99.7.$i/24 dev eth0 && ip -n $bridge-n$i link set eth0 up && ip -n $bridge-n$i link set lo up ||
        fail "no namespace"
done

# Runs a command on a node: own network and host name, own /tmp and /dev/shm, where only our folders are seen again.
cat >"$dir/on-node" <<'NODE'
#!/bin/bash
node=$1; shift
exec nsenter --net=/run/netns/@BRIDGE@-$node unshare -m -u -i bash -c '
    node=$0 keep=/run/heddle-slurm.$0
    hostname $node
    mkdir -p $keep && mount -t tmpfs keep $keep
    for p in @FOLDERS@; do mkdir -p $keep/$p && mount --bind $p $keep/$p; done
    mount -t tmpfs tmp /tmp && mount -t tmpfs shm /dev/shm
    for p in @FOLDERS@; do mkdir -p $p && mount --bind $keep/$p $p; done
    printf "127.0.0.1 localhost\n10.99.7.1 n1\n10.99.7.2 n2\n" >/tmp/hosts && mount --bind /tmp/hosts /etc/hosts
    exec "$@"' $node "$@"
NODE
sed -i "s|@BRIDGE@|$bridge|g; s|@FOLDERS@|$dir $root $build|g" "$dir/on-node"
chmod +x "$dir/on-node"

mkdir -p "$dir"/{state,spool/n1,spool/n2,log}
cat >"$dir/slurm.conf" <<CONF
ClusterName=heddle
SlurmctldHost=$(hostname -s)(10.99.7.254)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/d.%n.pid
SlurmctldLogFile=$dir/log/ctld.log
SlurmdLogFile=$dir/log/d.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=pmix
SlurmdTimeout=30
NodeName=n1 NodeAddr=10.99.7.1 CPUs=4 RealMemory=1000
NodeName=n2 NodeAddr=10.99.7.2 CPUs=4 RealMemory=1000
PartitionName=p Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$dir/slurm.conf

if ! munge -n >/dev/null 2>&1; then
    mkdir -p /run/munge && chown munge: /run/munge
    runuser -u munge -- munged --foreground >"$dir/log/munged" 2>&1 &
    started+=($!)
fi
slurmctld -D -f "$SLURM_CONF" >"$dir/log/ctld" 2>&1 &
started+=($!)
for n in n1 n2; do
    "$dir/on-node" $n slurmd -D -f "$SLURM_CONF" -N $n >"$dir/log/d.$n" 2>&1 &
    started+=($!)
done
for i in $(seq 60); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break
    sleep 0.5
done
[ "$(sinfo -h -t idle -o %D)" = 2 ] || fail "the nodes did not come up"

# ---- a job on both nodes, and the same one here

cd "$dir" || exit 1
for i in $(seq 2000); do echo "the warp is set, and weft $((i * i % 97)) goes over and under it"; done >corpus.txt
cat >job.yaml <<JOB
job:        {steps: 10, seed: 7}
device:     {use: cpu, threads: 1}
strategies: [{use: zero, stage: 2}]
mesh:       {dp: 4}
optimizer:  {use: adamw, lr: 1e-3, clip: 1.0}
model:      {use: transformer, family: llama, kv_heads: 2, ffn: 128, layers: 2, hidden: 64, heads: 4, vocab: 256}
data:       {train: corpus.txt, seq_len: 32, batch: 8, micro_batch: 2}
JOB
HEDDLE_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export HEDDLE_SECRET MASTER_ADDR=10.99.7.1 MASTER_PORT=29477 OMPI_MCA_mpi_yield_when_idle=1
on_nodes() { timeout 100 srun --mpi=pmix -N2 -n4 "$build/heddle" train job.yaml comm.use=mpi "$@"; }
losses() { sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/p' "runs/$1/metrics.jsonl"; }

on_nodes job.name=slurm comm.collectives=core >slurm.out 2>&1 || { cat slurm.out; fail "the job on two nodes failed"; }
on_nodes job.name=mpi >mpi.out 2>&1 || { cat mpi.out; fail "the job with MPI's collectives failed"; }
env -u MASTER_ADDR -u MASTER_PORT timeout 100 "$build/heddle" train job.yaml job.name=local >local.out 2>&1 || { cat local.out; fail "the local job failed"; }
[ -n "$(losses local)" ] && [ "$(losses slurm)" = "$(losses local)" ] || fail "the curves differ"
[ "$(losses mpi | wc -l)" = 10 ] || fail "not all steps were made"
echo "ok: 4 ranks on 2 nodes train with the bits of 4 local ones"

on_nodes job.name=killed job.steps=1000000 >killed.out 2>&1 &
for i in $(seq 200); do
    [ "$(losses killed 2>/dev/null | wc -l)" -ge 5 ] && break
    sleep 0.2
done
victim=
for p in /proc/[0-9]*; do
    tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -qx "SLURM_PROCID=3" && [ "$(readlink "$p/exe")" = "$build/heddle" ] && victim=${p#/proc/}
done
[ -n "$victim" ] || fail "rank 3 was not found"
began=$(date +%s%N)
kill -KILL "$victim"
wait $!
took=$((($(date +%s%N) - began) / 1000000))
grep -q "rank 3" killed.out || { cat killed.out; fail "rank 3 is not named"; }
[ $took -lt 10000 ] || fail "the job took $took ms to end"
echo "ok: a killed rank is named, the job ended after $took ms"
