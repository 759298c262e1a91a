#!/usr/bin/env python3
"""heddle import: what it prints is a job that heddle takes, with the values that DeepSpeed or accelerate would train with; what heddle does
not have is refused by name; and every key that its tables and docs/coming-from.md name is there.
usage: import.py HEDDLE SOURCE"""
import json
import os
import re
import subprocess
import sys
import tempfile

heddle, source = map(os.path.abspath, sys.argv[1:3])
os.chdir(tempfile.mkdtemp(prefix="heddle-import-"))
MORE = ["model={use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}", "data.train=text",
        "data.format=bytes", "data.seq_len=16"]
with open("text", "w", encoding="ascii") as f:
    f.write("the warp and the weft are woven into one cloth, again and again.\n" * 40)


def run(*words):
    return subprocess.run([heddle, *words], capture_output=True, text=True, check=False)


def expect(true, what):
    if not true:
        sys.exit(f"import: {what}")


def imported(config, *words, code=0):
    name = "config.json" if isinstance(config, dict) else "config.yaml"
    with open(name, "w", encoding="utf-8") as f:
        f.write(json.dumps(config, indent="\t") if isinstance(config, dict) else config)
    made = run("import", name, *words)
    expect(made.returncode == code, f"exit code {made.returncode} instead of {code} for {config}:\n{made.stdout}{made.stderr}")
    return made


def job_of(config, *words, more=()):
    """What the printed job means to heddle: SECTION.KEY to the value of --print-config, where it is no default."""
    with open("job.yaml", "w", encoding="utf-8") as f:
        f.write(imported(config, *words).stdout)
    made = run("train", "job.yaml", "--print-config", *MORE, *more)
    expect(made.returncode == 0, f"heddle refuses the job of {config}:\n{made.stderr}")
    values, section = {}, []
    for indent, key, value in re.findall(r"^( *)(?:- )?([a-z_0-9]+):(?: +(\S.*?))? *(?:#.*)?$", made.stdout, re.M):
        depth = len(indent) // 2 - (len(indent) > 2 and section[0] == "strategies")  # items of a list
        section = section[:depth] + [key]
        values[".".join(section)] = value
    return values


def expect_values(values, **wanted):
    for key, value in wanted.items():
        key = key.replace("__", ".")
        expect(values.get(key) == value, f"{key} is {values.get(key)}, not {value}")


# ---- DeepSpeed

LINEAR = {"warmup_num_steps": 5, "total_num_steps": 70, "warmup_type": "linear"}
FULL = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 0.7,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.3}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 4e-5, **LINEAR}},
        "bf16": {"enabled": True}, "fp16": {"enabled": False, "loss_scale": 0}, "steps_per_print": 10, "wall_clock_breakdown": False,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True, "buffer_count": 4},
                              "offload_param": {"device": "cpu"}, "overlap_comm": True, "reduce_bucket_size": "auto",
                              "stage3_max_live_parameters": 1e9, "sub_group_size": 1e9, "contiguous_gradients": True}}
expect_values(job_of(FULL), data__batch="16", data__micro_batch="4", mesh__dp="2", optimizer__use="adamw", optimizer__lr="4.0e-05",
              optimizer__betas="[0.8, 0.99]", optimizer__eps="1.0e-07", optimizer__weight_decay="0.3", optimizer__clip="0.7",
              optimizer__decay="all", schedule__kind="linear", schedule__warmup="5", job__steps="70", precision__compute="bf16",
              metrics__every="10", strategies__stage="3", strategies__max_live="1000000000")
said = imported(FULL).stdout
for words in ("wall_clock_breakdown: metrics.profile", "zero_optimization.offload_optimizer.buffer_count: strategy zero has no such key"):
    expect(words in said, f"'{words}' is no comment of:\n{said}")

# Its defaults are not heddle's.
expect_values(job_of({"train_batch_size": 4, "optimizer": {"type": "Adam"}}, more=["job.steps=9"]), optimizer__lr="0.001",
              optimizer__betas="[0.9, 0.999]", optimizer__eps="1.0e-08", optimizer__weight_decay="0", optimizer__clip="0", optimizer__decay="all")
expect_values(job_of({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, more=["job.steps=9"]),
              optimizer__weight_decay="0.01")
expect_values(job_of({"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.9}},
                      "fp16": {"enabled": True, "loss_scale": 128}}, more=["job.steps=9"]),
              optimizer__use="sgd", optimizer__lr="0.5", optimizer__momentum="0.9", optimizer__weight_decay="0", optimizer__clip="0",
              precision__compute="fp16", precision__loss_scale="128")
expect_values(job_of({"train_batch_size": 4, "optimizer": {"type": "Lion", "params": {"lr": 0.01}}, "scheduler": {
    "type": "WarmupCosineLR", "params": {**LINEAR, "cos_min_ratio": 0.1}}}), optimizer__use="lion", optimizer__betas="[0.9, 0.99]",
              schedule__kind="cosine", schedule__min_lr="0.001", schedule__warmup="5", job__steps="70")
expect_values(job_of({"train_batch_size": 4, "optimizer": {"type": "Adam"}, "bf16": {"enabled": 1}}, more=["job.steps=9"]),
              precision__compute="bf16")
# Its lowest rate is a part of one that is not known.
said = imported({"optimizer": {"type": "Adam", "params": {"lr": "auto"}}, "scheduler": {"type": "WarmupCosineLR", "params": LINEAR}}).stdout
expect("min_lr: auto" in said and "its lowest is 1e-4 of it: say schedule.min_lr" in said, said)
# batch = micro-batch x accumulation x ranks
PARTS = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "optimizer": {"type": "Adam"}}
expect_values(job_of(PARTS, "--ranks", "2", more=["job.steps=9"]), data__batch="16", data__micro_batch="4", mesh__dp="2")
expect_values(job_of({"train_batch_size": 16, "gradient_accumulation_steps": 2, "optimizer": {"type": "Adam"}}, "--ranks", "4",
                     more=["job.steps=9"]), data__micro_batch="2", mesh__dp="4")

REFUSED = [
    ({"train_bacth_size": 8}, "config.json:2:2: train_bacth_size: no key that `heddle import` knows: did you mean train_batch_size?"),
    ({"optimizer": {"type": "OneBitAdam"}}, "optimizer.type: OneBitAdam: there is Adam, AdamW, SGD, Lion"),
    ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "optimizer.params.adam_w_mode: false: there is only true here"),
    ({"optimizer": {"type": "SGD", "params": {"nesterov": True}}}, "optimizer.params.nesterov: true: there is only false here"),
    ({"optimizer": {"type": "AdamW", "params": {"weight_decy": 1}}}, "optimizer.params.weight_decy: no key that `heddle import` knows: did you mean"),
    ({"scheduler": {"type": "OneCycle"}}, "scheduler.type: OneCycle: there is WarmupLR"),
    ({"scheduler": {"type": "WarmupLR"}}, "scheduler.params.warmup_type: log (its default)"),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_min_lr": 1e-5}}}, "warmup_min_lr: 1e-05: there is only 0"),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16.enabled: fp16 is enabled as well"),
    ({"curriculum_learning": {"enabled": True}}, "curriculum_learning: heddle does not have it: sequences have one length"),
    ({"elasticity": {"enabled": True}}, "elasticity: heddle does not have it"),
    ({"sparse_gradients": True}, "sparse_gradients: heddle does not have it"),
    (PARTS, "train_batch_size: it follows from how many data ranks there are: say --ranks N"),
    ({**PARTS, "train_batch_size": 30}, "train_batch_size: 30 is not a multiple of 4 x 2"),
    ({**PARTS, "gradient_accumulation_steps": 9223372036854775807}, "gradient_accumulation_steps: 9223372036854775807: a number from 1 to 1048576"),
    ({**PARTS, "gradient_accumulation_steps": -2}, "gradient_accumulation_steps: -2: a number from 1 to 1048576"),
    ({"train_batch_size": 32.5}, "train_batch_size: 32.5: a number from 1 to"),
    ({"train_batch_size": "many"}, "train_batch_size: many: a number from 1 to"),
    ({"bf16": True}, "bf16: true: a mapping is wanted there: {enabled: ...}"),
    ({"bf16": "auto"}, "bf16: auto: a mapping is wanted there"),
    ({"bf16": {"enable": True}}, "bf16.enable: no key that `heddle import` knows: did you mean enabled?"),
    ({"zero_optimization": True}, "zero_optimization: true: a mapping is wanted there: {stage: ...}"),
    ({"zero_optimization": {"stge": 3}}, "zero_optimization.stge: no key that `heddle import` knows: did you mean stage?"),
    ({"data_types": "bf16"}, "data_types: bf16: a mapping is wanted there"),
    ({"optimizer": "AdamW"}, "optimizer: AdamW: a mapping is wanted there: {type: ...}"),
    ({"optimizer": {"type": "AdamW", "lr": 1e-4}}, "optimizer.lr: no key that `heddle import` knows"),
    ({"optimizer": {"type": "AdamW", "parms": {"lr": 1e-4}}}, "optimizer.parms: no key that `heddle import` knows: did you mean params?"),
    ({"scheduler": {"type": "WarmupLR", "warmup_type": "linear"}}, "scheduler.warmup_type: no key that `heddle import` knows"),
    ("distributed_type: FSDP\nfsdp_config: true\n", "fsdp_config: true: a mapping is wanted there"),
    ("fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n", "distributed_type: : there is NO, MULTI_GPU"),
    ("distributed_type: MEGATRON_LM\n", "distributed_type: MEGATRON_LM: there is NO, MULTI_GPU"),
    ("distributed_type: FSDP\nmixed_precision: fp8\n", "mixed_precision: fp8: there is no, bf16, fp16"),
    ("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n", "deepspeed_config_file: heddle does not have it: import that"),
]
for config, words in REFUSED:
    made = imported(config, code=2)
    expect(words in made.stderr and not made.stdout, f"'{words}' is not what it says of {config}:\n{made.stderr}{made.stdout}")
    made = imported(config, "--anyway").stdout
    expect("# not the same: " in made, f"--anyway does not say it of {config}:\n{made}")
# Another trainer's file is no DeepSpeed's with typing errors, whatever it has in common with one.
AXOLOTL = ("base_model: a/b\nsequence_len: 2048\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nnum_epochs: 3\nlearning_rate: 2e-4\n"
           "optimizer: adamw_torch\nlr_scheduler: cosine\ndatasets:\n  - path: alpaca.jsonl\nbf16: auto\n")
for more in ((), ("--anyway",)):
    made = imported(AXOLOTL, *more, code=2)
    expect("config.yaml: is neither DeepSpeed's nor accelerate's, which lack most of its keys: docs/coming" in made.stderr and "did you mean" not in made.stderr
           and not made.stdout, f"of axolotl's file it says:\n{made.stderr}{made.stdout}")
OWN = {"zero_optimization": {"stage": 3}, "compile": {"disable": True}, "nebula": {"enabled": True}, "sequence_parallel": 1}
expect("nebula" in imported(OWN, code=2).stderr and "strategies" in imported(OWN, "--anyway").stdout, "DeepSpeed's keys that are not known here")
for off in ({"curriculum_learning": {"enabled": False}}, {"sparse_gradients": False}, {"optimizer": None}, {"fp16": {"enabled": False}}, {"zero_optimization": False},
            {"bf16": False}):
    imported(off)
# auto stays in the job, which is refused until a value is said.
AUTO = {"train_batch_size": "auto", "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
said = imported(AUTO).stdout
with open("job.yaml", "w", encoding="utf-8") as f:
    f.write(said)
made = run("train", "job.yaml", "--dry-run", *MORE, "job.steps=2")
for key in ("data.batch", "optimizer.lr", "optimizer.clip", "precision.compute"):
    expect(f"{key}: 'auto' is" in made.stderr and f"auto: say {key}" in said, f"{key}: auto is not refused:\n{made.stderr}\n{said}")

# ---- accelerate
FSDP = """distributed_type: FSDP
mixed_precision: bf16
num_processes: 2
machine_rank: 0
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_activation_checkpointing: true, fsdp_forward_prefetch: false, fsdp_offload_params: true,
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer}
"""
OWN = ["job.steps=2", "data.batch=8", "optimizer={use: adamw, lr: 1e-3}"]
expect_values(job_of(FSDP, more=OWN), launch__ranks="2", precision__compute="bf16", recompute="full", strategies__stage="FULL_SHARD",
              strategies__prefetch="0", strategies__offload__params="host", strategies__offload__optimizer="host")
old = job_of(FSDP.replace("fsdp_forward_prefetch", "fsdp_backward_prefetch_policy: BACKWARD_PRE, fsdp_forward_prefetch"), more=OWN)
expect(old == job_of(FSDP.replace("fsdp_forward_prefetch", "fsdp_backward_prefetch: BACKWARD_PRE, fsdp_forward_prefetch"), more=OWN),
       "accelerate 0.26's fsdp_backward_prefetch_policy is another key")
# num_processes are those of all machines.
MACHINES = FSDP.replace("num_processes: 2", "num_processes: 8\nnum_machines: 2")
for words in ([], ["--ranks", "8"]):
    expect("launch: {ranks: 4, nodes: 2}\n" in imported(MACHINES, *words).stdout, imported(MACHINES, *words).stdout)
    expect("num_machines: launch.rendezvous (--rendezvous) is to say where they meet" in imported(MACHINES, *words).stdout, imported(MACHINES, *words).stdout)
for more, meet in (("main_process_ip: 10.0.0.1\nmain_process_port: 29401\n", "10.0.0.1:29401"), ("main_process_ip: node0\n", "node0:29500"),
                   ("main_process_ip: 'fd00::1'\n", "[fd00::1]:29500")):
    expect(f"launch: {{ranks: 4, nodes: 2, rendezvous: '{meet}'}}\n" in imported(MACHINES + more).stdout, imported(MACHINES + more).stdout)
expect("launch: {ranks: 6}\n" in imported(FSDP.replace("num_processes: 2\n", ""), "--ranks", "6").stdout, "--ranks is not the number of processes")
for config, words, says in ((MACHINES, ["--ranks", "4"], "num_processes: 8, and --ranks is 4"), (FSDP, ["--ranks", "8"], "num_processes: 2, and --ranks is 8"),
                            (FSDP.replace("num_processes: 2", "num_processes: abc"), [], "num_processes: abc: a number from 1"),
                            (FSDP.replace("num_processes: 2", "num_processes: 4\nnum_machines: 0"), [], "num_machines: 0: a number from 1"),
                            (FSDP.replace("num_processes: 2", "num_processes: 3\nnum_machines: 2"), [], "2 machines do not divide 3 processes")):
    said = imported(config, *words, code=2).stderr
    expect(says in said, f"'{says}' is not in:\n{said}")
said = imported(FSDP.replace("FSDP\n", "MULTI_GPU\n")).stdout
expect("fsdp_config: accelerate reads it with distributed_type: FSDP, and that is MULTI_GPU" in said and "use: zero" in said, said)
# FSDP2 does not read the strategy that a file of FSDP1 has left behind; FSDP1 takes it under the later name, too.
LEFT = FSDP.replace("fsdp_sharding_strategy: FULL_SHARD", "fsdp_version: 2, fsdp_sharding_strategy: NO_SHARD, fsdp_reshard_after_forward: %s")
expect_values(job_of(LEFT % "true", more=OWN), strategies__stage="FULL_SHARD", strategies__reshard_after_forward="true")
expect_values(job_of(LEFT % "false", more=OWN), strategies__stage="FULL_SHARD", strategies__reshard_after_forward="false")
expect("fsdp_version 2 does not read it" in imported(LEFT % "true").stdout, imported(LEFT % "true").stdout)
expect_values(job_of(FSDP.replace("fsdp_sharding_strategy: FULL_SHARD", "fsdp_reshard_after_forward: SHARD_GRAD_OP").replace(
    "fsdp_offload_params: true", "fsdp_offload_params: false"), more=OWN), strategies__stage="SHARD_GRAD_OP")
expect_values(job_of("distributed_type: DEEPSPEED\nmixed_precision: 'no'\ndeepspeed_config: {zero_stage: 2, gradient_clipping: 0.5, "
                     "offload_optimizer_device: none}\n", more=OWN[:2] + ["optimizer.use=adamw", "mesh.dp=2"]),
              strategies__stage="2", optimizer__clip="0.5")

for words, says in ((["nowhere.json"], "nowhere.json: cannot open"), (["x.toml"], "TOML is not read"), (["config.json", "--ranks", "0"], "a number from 1"),
                    (["config.json", "--ranks", "2x"], "a number from 1"), (["config.json", "a=b"], "takes keys afterwards")):
    made = run("import", *words)
    expect(made.returncode == 2 and says in made.stderr, f"heddle import {words}: {made.returncode} {made.stderr}")

# ---- keys that the tables put into a job
known = set(re.findall(r"([a-z]+\.[a-z_]+)=", subprocess.run([os.path.join(source, "tools/from-help"), heddle, "bash"], capture_output=True,
                                                             text=True, check=True).stdout))
for plugin, section in (("optim-adamw", "optimizer"), ("optim-sgd", "optimizer"), ("optim-lion", "optimizer"), ("strategy-zero", "strategies")):
    shown = json.loads(run("plugins", plugin, "--json").stdout)["plugins"][0]
    for option in shown["options"]:
        known |= {f"{section}.{name}" for name in [option["name"], *option.get("aliases", [])]}
with open(os.path.join(source, "cli/import.c"), encoding="utf-8") as f:
    targets = re.findall(r'\{"(\w+)", VALUE, (\w+), "([\w.]+)"', f.read())
expect(len(targets) > 20, "cli/import.c has few rows")
names = {"STRATEGY": "strategies"}
for key, section, word in targets:
    path = f"{names.get(section, section.lower())}.{word}"
    expect(path in known, f"{key} becomes {path}, which is no key")
print(f"{len(REFUSED)} refusals, {len(targets)} keys")
