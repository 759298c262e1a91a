"""The faults that planted.py plants, each an edit of one pass, kernel descriptor or plugin; what must find each; and the
jobs that it is looked for in. An edit names text that stands once in its file: where that has changed, write it anew."""

# Overrides of the job BASE, two spaces between them.
BASE = """\
job: {name: planted, steps: 4, deterministic: normal}
strategies: [{use: zero}]
optimizer: {use: adamw, lr: 1e-2, clip: 0.1}
model: {use: transformer, family: llama, layers: 4, hidden: 16, heads: 4, ffn: 16, vocab: 32, max_seq_len: 32}
data: {train: none, seq_len: 16, batch: 8, micro_batch: 1}
recompute: none
precision: {compute: fp32}
"""
JOBS = """\
a01  mesh={dp: 4}  strategies=[{use: zero, stage: 0, bucket: 4000}]  model.kv_heads=2
a02  mesh={dp: {replicate: 2, shard: 2}}  strategies=[{use: zero, stage: 1, bucket: 4000}]  model.kv_heads=2  precision={compute: bf16}
a03  mesh={dp: {replicate: 2, shard: 2}}  strategies=[{use: zero, stage: 2, bucket: 0}]  model.family=gpt2  model.tied=true
a04  mesh={dp: 2, tp: 2}  strategies=[{use: 3d, sequence_parallel: true}, {use: zero, stage: 3, prefetch: 2}]  model.kv_heads=2  precision={compute: bf16}
a05  mesh={pp: 2, dp: 2}  strategies=[{use: 3d, schedule: 1f1b}, {use: zero, stage: 1}]  model.tied=true
a06  mesh={pp: 4}  strategies=[{use: 3d, schedule: zb-v}, {use: zero, stage: 0}]  model.family=gpt2  model.tied=true  model.layers=8
a07  mesh={pp: 2, tp: 2}  strategies=[{use: 3d, schedule: interleaved, sequence_parallel: true}, {use: zero, stage: 0}]  model.kv_heads=2  data.micro_batch=2
a08  mesh={cp: 2, dp: 2}  strategies=[{use: 3d, context: ring}, {use: zero, stage: 2}]  model.kv_heads=2
a09  mesh={cp: 2, tp: 2}  strategies=[{use: 3d, context: ulysses, sequence_parallel: true}, {use: zero, stage: 3}]  model.kv_heads=4
a10  mesh={ep: 2, dp: 2}  strategies=[{use: 3d}, {use: zero, stage: 1}]  model.family=mixtral  model.experts=4  model.experts_per_token=2  model.router_aux_loss_coef=0.3
a11  mesh={dp: {replicate: 2, shard: 2}}  strategies=[{use: zero, stage: 3}, {use: localsgd, every: 2, axes: [dp_replicate], outer_lr: 0.7, momentum: 0.9}]  model.kv_heads=2
a12  mesh={dp: 2}  strategies=[{use: zero, stage: 2, bucket: 0}, {use: ema, decay: 0.9}]  model.kv_heads=2
a13  mesh={dp: 2}  strategies=[{use: zero, stage: 0, compress: {kind: int8}}]  model.kv_heads=2
a14  mesh={dp: 2}  strategies=[{use: zero, stage: 1, compress: {kind: int8}}]  model.kv_heads=2
a15  mesh={dp: 2}  strategies=[{use: zero, stage: 0, compress: {kind: powersgd, rank: 64}}]  model.kv_heads=2
a16  mesh={dp: 2}  strategies=[{use: zero, stage: 1, bucket: 0, offload: {optimizer: host}}]  model.kv_heads=2  precision={compute: bf16}
a17  mesh={dp: 2}  strategies=[{use: zero, stage: 3, offload: {optimizer: host, params: host}}]  model.kv_heads=2  precision={compute: bf16}
a18  mesh={dp: 4}  strategies=[{use: zero, stage: 1, bucket: 0}]  model.tied=true  data.batch=16  job.deterministic=exact
a19  mesh={pp: 2, dp: 2}  strategies=[{use: 3d}, {use: zero, stage: 0}]  model.family=gpt2  model.tied=true  job.deterministic=exact
a20  mesh={dp: 2}  strategies=[{use: zero, stage: 1}]  model.family=gpt2  precision={compute: fp32, loss_scale: 1024}
a21  mesh={dp: 2, tp: 2}  strategies=[{use: 3d, sequence_parallel: true}, {use: zero, stage: 3}]  model.kv_heads=2  recompute=full
a22  mesh={pp: 2, dp: 2}  strategies=[{use: 3d, schedule: zb-h1}, {use: zero, stage: 1}]  model.family=gpt2  recompute=selective
a23  mesh={dp: {replicate: 2, shard: 2}}  strategies=[{use: zero, stage: 1}]  model.kv_heads=2  precision={compute: fp32, reduce: bf16}
a24  mesh={dp: 2}  strategies=[{use: zero, stage: 1, bucket: 0}]  model.kv_heads=2  optimizer={use: adamw, lr: 1e-2, rounding: stochastic}  precision={compute: bf16, master: bf16, grad: fp32}
a25  mesh={dp: 2, tp: 4}  strategies=[{use: 3d}, {use: zero, stage: 1}]  model.kv_heads=2  model.heads=8
a26  mesh={cp: 4}  strategies=[{use: 3d, context: ring}, {use: zero, stage: 1}]  model.sliding_window=5
a27  mesh={ep: 2, tp: 2}  strategies=[{use: 3d, sequence_parallel: true}, {use: zero, stage: 3}]  model.family=mixtral  model.experts=4  model.experts_per_token=2  model.capacity=1.5  model.router_aux_loss_coef=0.1  precision={compute: fp32, loss_scale: 1024}
a28  mesh={pp: 2, dp: 2, cp: 2}  strategies=[{use: 3d, context: ring}, {use: zero, stage: 2}]  model.kv_heads=2
a29  mesh={pp: 2, dp: 2}  strategies=[{use: 3d}, {use: zero, stage: 3}]  optimizer={use: sgd, lr: 1e-1, momentum: 0.9}
a30  mesh={dp: {replicate: 2, shard: 2}}  strategies=[{use: zero, stage: 0}, {use: localsgd, every: 1, outer_lr: 1, momentum: 0}]  model.kv_heads=2  optimizer={use: sgd, lr: 1e-1}
a31  mesh={dp: {replicate: 2, shard: 2}, cp: 2}  strategies=[{use: 3d}, {use: zero, stage: 3, axes: [dp_replicate, dp_shard, cp]}]  model.kv_heads=4
a32  mesh={dp: 2}  strategies=[{use: zero, stage: 2}]  model.kv_heads=2  precision={compute: fp16}
a33  mesh={dp: 2, tp: 2}  strategies=[{use: 3d}, {use: zero, stage: 1}]  model.family=gpt2  precision={compute: bf16}
a34  mesh={dp: 4}  strategies=[{use: zero, stage: 2}]  model.kv_heads=2  data.batch=12
"""

FAULTS = {}  # name: (file, [(old, new), ...], what)


def fault(name, path, what, *edits):
    FAULTS[name] = (path, list(zip(edits[::2], edits[1::2])), what)


MEMORY = "core/passes/memory_plan.c"
END = "(x->paged ? page_align(x->bytes) : align(x->bytes));\n    }\n    if (paged)"
SHORT = END.replace(": align(", ": x->bytes > 256 && x->memory %s HD__MEM_MAIN ? align(x->bytes) - 64 : align(")
fault("mem_persistent_overlap", MEMORY, "persistent buffers reach 64 bytes into the next", END, SHORT % "==")
fault("mem_host_overlap", MEMORY, "the same in the host arena", END, SHORT % "!=")
fault("mem_arenas_overlap", MEMORY, "the host arena begins inside the main one", "+ p->bytes[memory - 1]);", "+ p->bytes[memory - 1] / 2);")
fault("mem_temp_overlap", MEMORY, "temporaries overlap by 64 bytes", ".bytes = b->paged ? page_align(b->bytes) :", ".bytes = b->paged ? page_align(b->bytes) : b->bytes > 256 ? align(b->bytes) - 64 :")
fault("life_wait", MEMORY, "what is in flight loses its memory before the wait", "uint32_t k = hd__live_buffers(p, code, position, n, t); k-- > 0;)\n                extend_life", "uint32_t k = code->at[n].op == HD_OP_WAIT ? 0 : hd__live_buffers(p, code, position, n, t); k-- > 0;)\n                extend_life")
fault("alias_alive", "core/passes/inplace.c", "an output takes the memory of an input that is still read", "if (a->last[from] != end || a->first[to] != n ||", "if (a->first[to] != n ||")

MEAN = "core/compile/micro_batch_mean.c"
WEIGHT = "p->token_weight = 1.0 / ((double)job->batch * (double)job->seq_len);"
fault("loss_no_accum", MEAN, "the loss divisor forgets the micro-batches", WEIGHT, WEIGHT.replace("1.0", "(double)job->accumulation"))
fault("loss_no_dp", MEAN, "the mean over a rank's own tokens, summed over dp", WEIGHT, WEIGHT.replace("(double)job->batch", "(double)(job->micro_batch * job->accumulation)"))
fault("apart_seed", "core/passes/replicas.c", "local SGD: a replica's gradient is divided by all replicas' tokens", "attrs.scale *= (double)hd__mesh_ways(&p->mesh, p->independent_axes);", "attrs.scale *= 1;")
fault("scale_first", "core/passes/lower.c", "the loss scale reaches only some of the seeds", "if (i->op == HD_OP_SPREAD)", "if (i->op == HD_OP_SPREAD && !(k > 0 && p->sections.at[s].code.count > 3 && k % 2))")
fault("fuse_drop_scale", "core/passes/fuse_loss_head.c", "the fused loss forgets the loss scale", "if (part(h, SPREAD)->n_in) /* the loss scale */\n        head.in[head.n_in++] = part(h, SPREAD)->in[0];", "")
fault("accum_off", "core/passes/lower.c", "one micro-batch too many", "HD__SECTION_MICRO, p->accumulation - 1)", "HD__SECTION_MICRO, p->accumulation)")
fault("accum_less", "core/passes/lower.c", "one micro-batch too few", "HD__SECTION_MICRO, p->accumulation - 1)", "HD__SECTION_MICRO, p->accumulation > 2 ? p->accumulation - 2 : 1)")
fault("eval_scale", "core/passes/lower.c", "the loss of an evaluation is not summed over the ranks", "HD__SECTION_EVAL_END, 0)->code);", "HD__SECTION_EVAL_END, 0)->code);\n    p->sections.at[p->sections.count - 1].code.count = 0;")
fault("loss_pp_first", "core/passes/lower.c", "stage 0 reduces the loss on another stream", "HD__STREAM_AXIS + __builtin_ctz(axes));", "HD__STREAM_AXIS + __builtin_ctz(axes));\n    if (stages && p->stage == 0)\n        i.stream = (uint16_t)(HD__STREAM_WORLD + 1000);")

UNROLL = "core/passes/pipeline_unroll.c"
SENT = "i.in[i.n_in++] = twin_of(u, a, x->tensor);"
fault("send_old", UNROLL, "micro-batch 1 sends the tensor of micro-batch 0", SENT, SENT.replace("a,", "a->micro == 1 ? &(struct hd_action){a->kind, a->chunk, 0} : a,"))
fault("feed_micro", UNROLL, "tokens of another micro-batch are fed", "(int16_t)a->micro;\n    i.chunk", "(int16_t)(i.op == HD_OP_FEED && a->micro ? a->micro - 1 : a->micro);\n    i.chunk")
fault("same_stage_old", UNROLL, "zb-v: what stays on a stage is that of micro-batch 0", "x->from, a->micro}", "x->from, a->micro == 1 ? 0 : a->micro}")
TAG = "i.tag = (uint16_t)(a->micro * u->crossings.count + n);"
fault("tag_micro", UNROLL, "messages of all micro-batches have one tag", TAG, "i.tag = (uint16_t)n;")
fault("tag_micro_order", UNROLL, "one tag, and the receives of micro-batches 0 and 1 exchanged", TAG, "i.tag = (uint16_t)n;", "i.out[i.n_out++] = twin_of(u, a, x->tensor);", "i.out[i.n_out++] = twin_of(u, a->kind == HD_ACTION_F && a->micro < 2 ? &(struct hd_action){a->kind, a->chunk, 1 - a->micro} : a, x->tensor);")
fault("exact_order", "core/passes/deterministic.c", "exact: micro-batches are added one by one, not in a tree", "left_edge(at) ? emit_accum(s, accum, value) : value; at > 1", "left_edge(at) || 1 ? emit_accum(s, accum, value) : value; 0 && at > 1")
fault("ring_skip", "core/passes/ring_attention.c", "ring: a step that some queries' window needs is left out, never reached here", "keys * run + (keys < queries) * (run - 1));", "keys * run);")
fault("ring_skip2", "core/passes/ring_attention.c", "ring: a step that some queries' window needs is left out", "keys * run + (keys < queries) * (run - 1));", "keys * run - 1);")
fault("recompute_other", "core/passes/recompute.c", "norms are made again with another epsilon", "i.phase = HD__PHASE_R;", "i.phase = HD__PHASE_R;\n    if (i.attrs && i.op == HD_OP_RMSNORM) {\n        struct hd_attrs wrong = *i.attrs;\n        wrong.eps *= 1000;\n        i.attrs = hd__attrs_new(r->p, &wrong);\n    }")

UPDATE = "core/passes/optimizer_update.c"
DECAY = "(struct hd_range){f->offset[i], hd__numel(p, t), param->decay};"
SEED = "    seed_rounding(p, f, &attrs);"
fault("decay_off", UPDATE, "weight decay at a neighbour's place", DECAY, DECAY.replace("f->offset[i]", "i ? f->offset[i - 1] : 0"))
fault("clip_some", UPDATE, "one flat is not clipped", SEED, "    attrs.clip = id == 2 ? 0 : attrs.clip;\n" + SEED)
fault("lr_one_flat", UPDATE, "one flat has another beta1", SEED, "    if (id == 1)\n        attrs.beta1 *= 0.5;\n" + SEED)
fault("lots_same", UPDATE, "stochastic rounding: every flat draws the same numbers", "attrs->index = (uint32_t)hd__hash(name, strlen(name), attrs->index);", "(void)name;")
fault("tied_decay", UPDATE, "the last stage does not decay the tied embedding", "attrs.n_ranges = decay_ranges(p, f, &ranges);", "attrs.n_ranges = f->members && p->stage > 0 ? 0 : decay_ranges(p, f, &ranges);")
fault("state_dtype", UPDATE, "optimizer states in the dtype of compute", "t.dtype = (uint8_t)state->dtype;", "t.dtype = p->precision.compute;")

FLATS = "core/passes/flat_buffers.c"
BACKWARDS = """    for (int32_t axis = HD_AXIS_COUNT - 1; axis >= 0; axis--)
        if (f->axes & HD_AXIS_BIT(axis))
            t.placement.shard[0] = hd__shard_push(t.placement.shard[0], axis);"""
fault("grad_shard_order", FLATS, "shards over two axes: minor and major axis exchanged", "    along(p, &t, f->axes);", BACKWARDS)
fault("flat_overlap", FLATS, "parameters of a flat overlap by 16 elements", "f->offset[i] = f->count;", "f->offset[i] = i ? f->count - 16 : f->count;")
fault("flat_short", FLATS, "a flat is shorter than its parameters", "f->count = aligned(f->count, to * ways);", "f->count = aligned(f->count - 16, to * ways);")
fault("fetch_offset", "core/passes/offload.c", "offload: the copy in the main memory has another dtype", 't.name = hd__arena_format(&p->arena, "%s@%u", t.name, slot);', 't.name = hd__arena_format(&p->arena, "%s@%u", t.name, slot);\n    t.dtype = t.dtype == HD_F32 ? HD_BF16 : t.dtype;')

ZERO = "plugins/strategy-zero/"
fault("grad_dtype", ZERO + "plan.c", "gradients are accumulated in the dtype of compute", 'grad = api->dtype(z->p, "grad");', "grad = compute;")
fault("master_dtype", ZERO + "plan.c", "master weights in the dtype of compute", '"M", z->api->dtype(z->p, "master"),', '"M", z->api->dtype(z->p, "compute"),')
fault("gs_dtype", ZERO + "reduce.c", "reduce_scatter of a bf16 wire into a shard of fp32", '"gs", dtype, HD_LIFE_TEMP', '"gs", z->api->dtype(z->p, "grad"), HD_LIFE_TEMP')
fault("minor_last", ZERO + "reduce.c", "sums over tp are not taken at stage 0", "    settle(z, f, wire, section, index);\n    if (zero_codes", "    if (f->stage)\n        settle(z, f, wire, section, index);\n    if (zero_codes")
WIRE = 'z->wire = z->api->dtype(z->p, "reduce");'
fault("wire_dtype", ZERO + "compress.c", "gradients travel in fp16 where bf16 was asked for", WIRE, WIRE + "\n    z->wire = z->wire == HD_BF16 ? HD_F16 : z->wire;")
fault("decode_parts", ZERO + "compress.c", "int8: only the first member's codes are summed", "f->stage ? f->shard : c->sum, 0, c->ways,", "f->stage ? f->shard : c->sum, 0, 1,")
fault("encode_noef", ZERO + "compress.c", "int8: no error feedback", "grad, c->sent, c->error, c->ways, HD_ATTR_ACCUMULATE,", "grad, c->sent, c->error, c->ways, 0,")
fault("decode_concat", ZERO + "compress.c", "int8 stage 0: gathered parts are added instead of joined", "f->code.ways, HD_ATTR_CONCAT,", "f->code.ways, 0,")
fault("late_home", ZERO + "params.c", "stages 1, 2: gathered from the fp32 master instead of the bf16 copy", "f->home, f->whole, f->axes);\n", "f->master, f->whole, f->axes);\n")
ZUPDATE = ZERO + "update.c"
fault("offload_low", ZUPDATE, "offload: the low copy is not fetched, a skipped update writes back garbage", "nth(z, n)->id, all, all, n % SLOTS);", "nth(z, n)->id, all, HD_PART_MASTER | HD_PART_STATES, n % SLOTS);")
fault("one_slot", ZUPDATE, "offload: one slot for all", "#define SLOTS 3", "#define SLOTS 1")
fault("warm_norm", ZUPDATE, "tied parameters count twice in the norm", "if (zero_tied(param))\n            copies *= __builtin_popcountll(param->stages);", "(void)0;")
fault("norm_state", ZUPDATE, "the norm has a scale that its kernel does not read", "attrs = {.struct_size = sizeof attrs, .ranges", "attrs = {.struct_size = sizeof attrs, .scale = 2, .ranges")
fault("restore_skip", ZUPDATE, "after a load, one flat is not gathered", "if (zero_gathers(flat))", "if (zero_gathers(flat) && f)")
fault("low_skip", ZUPDATE, "one flat's low copy is not updated", "flat->id, flat->low);", "flat->id, n == 1 ? 0 : flat->low);")
TIED = '            i.members = z->flats[f].members;\n            z->api->append(z->p, "update", &i);'
fault("tied_order", ZUPDATE, "stage 0 sums the tied gradient before the loss, the last stage after it", TIED, '            i.members = z->flats[f].members;\n            uint32_t s = 0;\n            while (__builtin_strcmp(z->api->section_name(z->p, s), "update"))\n                s++;\n            if (z->api->stage(z->p) == 0 && z->api->n_instr(z->p, s))\n                z->api->insert(z->p, s, 0, 0, &i);\n            else\n                z->api->append(z->p, "update", &i);')

fault("localsgd_lr2", "plugins/strategy-localsgd/localsgd.c", "local SGD, nesterov: lr forgotten on the momentum", "(double[]){1, -lr, -lr * momentum},", "(double[]){1, -lr, -momentum},")
fault("localsgd_fact", "plugins/strategy-localsgd/localsgd.c", "local SGD: the momentum is declared an average", "HD_FACT_ZERO_SUM | HD_FACT_EQUAL", "HD_FACT_AVERAGE | HD_FACT_EQUAL")
fault("localsgd_mom", "plugins/strategy-localsgd/localsgd.c", "local SGD: dampened momentum", "(double[]){momentum, 1, 0}, 0);", "(double[]){momentum, 1 - momentum, 0}, 0);")
fault("ema_swap", "plugins/strategy-ema/ema.c", "EMA: decay and 1 - decay exchanged", "const double factor[] = {decay, 1 - decay};", "const double factor[] = {1 - decay, decay};")
fault("tq_owed", "plugins/strategy-3d/strategy.c", "kv heads too few: query heads are not sharded over tq", "    api->shard_params(p, 'g', HD_AXIS_TQ);\n    return HD_OK;", "    return HD_OK;")

BIND = "core/program/lower_instr.c"
fault("blend_parts", BIND, "local SGD: sum of the deltas, not their mean", "if (i->op == HD_OP_BLEND && i->axes)", "if (0)")
fault("part_order", BIND, "slice takes another rank's piece", "(uint32_t)p->mesh.size[a] + (uint32_t)coord[a];", "(uint32_t)p->mesh.size[a] + (uint32_t)(p->mesh.size[a] - 1 - coord[a]);")
fault("wrong_peer_ring", BIND, "ring: keys are taken for those of the other neighbour", "(coord[axis] + n - i->tag % n) % n;", "(coord[axis] + i->tag) % n;")
fault("zigzag_feed", BIND, "ring: rope does not know the zig-zag order", "a->zigzag_parts = hd__zigzag_parts(p);", "a->zigzag_parts = i->op == HD_OP_ROPE ? 0 : hd__zigzag_parts(p);")
GROUP = "            ranks[n++] = hd__mesh_rank(mesh, coord);\n    }\n"
fault("group_order", "core/program/mesh.c", "the members of a group are in reverse order", GROUP, GROUP + "    for (int32_t x = 0; x < n / 2; x++) {\n        int32_t y = ranks[x];\n        ranks[x] = ranks[n - 1 - x];\n        ranks[n - 1 - x] = y;\n    }\n")

OPS = "core/program/ops.c"
DW = '[HD_OP_RMSNORM_DW] = {"rmsnorm_dw", .unsharded = "$", .partial = {"*"},'
fault("sums_missing", OPS, "norm weight gradients are partial along b alone", DW, DW.replace('"*"}', '"b"}, .from = {1}'))
fault("sums_from", OPS, "norm weight gradients are never partial", DW, DW + " .from = {1 << 5},")
fault("linear_wrong", OPS, "GELU and SwiGLU are said to be linear", '{"swiglu",', '{"swiglu", .linear = HD__LINEAR_FIRST,', '{"gelu",', '{"gelu", .linear = HD__LINEAR_FIRST,')
fault("bias_linear", OPS, "a bias is added to a partial sum, tp times", '{"bias",', '{"bias", .linear = HD__LINEAR_FIRST,')

GRADIENTS = "core/program/op_gradients.c"
fault("embed_fp", GRADIENTS, "weight gradients are made in the dtype of compute", "t.dtype = p->precision.grad;", "t.dtype = p->precision.compute;")
fault("rope_sign", GRADIENTS, "the gradient of rope turns the wrong way", "attrs.sign *= rule->attrs;", "")
SWIGLU = '{HD_OP_SWIGLU, HD_OP_SWIGLU_GRAD, "ab",'
fault("swiglu_swap", GRADIENTS, "the two gradients of SwiGLU are exchanged", SWIGLU, SWIGLU.replace('"ab"', '"ba"'))
fault("gate_norm", GRADIENTS, "the router loss loses its factor in the backward pass", 'HD_OP_ROUTER_LOSS_DZ, "a", "abY", 1}', 'HD_OP_ROUTER_LOSS_DZ, "a", "abY"}')
fault("head_mean", GRADIENTS, "all gradients are twice as large", "attrs.sign *= rule->attrs;", "attrs.sign *= rule->attrs;\n        attrs.scale *= rule->op == HD_OP_SPREAD ? 2 : 1;")

# The finder of each. Those of the first list are found by `heddle check` alone, those of the second by `check --numerics`.
CHECK = """
mem_persistent_overlap mem_host_overlap mem_arenas_overlap mem_temp_overlap life_wait alias_alive loss_no_accum loss_no_dp
apart_seed scale_first fuse_drop_scale accum_off accum_less eval_scale loss_pp_first feed_micro tag_micro_order decay_off
clip_some lr_one_flat lots_same tied_decay state_dtype grad_shard_order flat_overlap flat_short fetch_offset grad_dtype
master_dtype gs_dtype minor_last wire_dtype decode_parts encode_noef decode_concat late_home offload_low one_slot warm_norm
restore_skip low_skip tied_order blend_parts part_order wrong_peer_ring zigzag_feed group_order embed_fp head_mean
send_old same_stage_old ring_skip2 recompute_other
""".split()
NUMERICS = "sums_from bias_linear exact_order localsgd_lr2 localsgd_mom ema_swap".split()
# Neither sees these; a suite does.
SUITES = {
    "rope_sign": "compile-training", "swiglu_swap": "compile-training", "gate_norm": "compile-training",
}
# No effect on these jobs, or none on the results of an emulated one.
HARMLESS = "sums_missing linear_wrong ring_skip tq_owed norm_state tag_micro".split()
