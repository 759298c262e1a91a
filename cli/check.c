/* heddle check: proves that a job's programs fit together. */
#include <jansson.h>
#include <stdlib.h>

#include "analysis/comm_plan.h"
#include "analysis/numerics.h"
#include "analysis/sim/machine.h"
#include "analysis/tp_span_warning.h"
#include "cli/warnings/warnings.h"

struct tally {
    uint64_t instructions, collectives, messages, events;
    int64_t arena;
    double seconds;
};

/* Runs all ranks' programs through the token machine. */
static int32_t prove(const struct hd__compiled *c, struct tally *t, struct hd_error *err)
{
    const struct hd_program **programs = hd__alloc((size_t)c->mesh.ranks * sizeof *programs);
    struct hd__sim_options options = {0};
    double start = hd__now();
    for (int32_t r = 0; r < c->mesh.ranks; r++)
        programs[r] = hd__compiled_program(c, r);
    struct hd__sim *machine = hd__sim_create(&c->mesh, programs, &options);
    int32_t rc = hd__sim_verify(machine, err);
    struct hd__sim_stats stats = hd__sim_stats(machine);
    t->events = stats.events;
    t->collectives = stats.collectives;
    t->messages = stats.messages;
    t->seconds = hd__now() - start;
    for (int32_t s = 0; s < c->n_stages; s++) {
        t->arena = HD__MAX(t->arena, c->stage[s]->arena_bytes);
        for (uint32_t k = 0; k < c->stage[s]->sections.count; k++)
            t->instructions += c->stage[s]->sections.at[k].code.count;
    }
    if (rc)
        fprintf(stderr, "%s\n", hd__sim_report(machine));
    hd__sim_destroy(machine);
    free(programs);
    return rc;
}

static void print_local_sgd(const struct hd_program *p)
{
    char axes[64];
    hd__axes_text(p->independent_axes, axes);
    for (uint32_t s = 0; s < p->sections.count && p->independent_axes; s++)
        if (p->sections.at[s].declares)
            printf("  ranks along %s train apart; every %u steps %s\n", axes, p->sections.at[s].every,
                   p->sections.at[s].equal_axes
                       ? "their parameters become equal, from the mean of what each has trained"
                       : "each rank's parameters become a mean of what ranks have trained, of every rank in the end");
}

/* ---- groups: of each stage's first rank */

struct stage {
    const struct hd__compiled *c;
    int32_t number, rank;
};

typedef void stage_fn(void *user, const struct stage *stage, const struct hd__routes *routes);

static void each_stage(const struct hd__compiled *c, const struct hd__routes_options *how, stage_fn *fn, void *user)
{
    struct hd__routes first = {0};
    struct hd__routes_options as_first = *how;
    as_first.shared = &first;
    for (int32_t s = 0; s < c->n_stages && c->mesh.ranks > 1; s++) {
        struct stage stage = {c, s, s * (c->mesh.ranks / c->n_stages)};
        struct hd__routes more = {0}, *routes = s ? &more : &first;
        hd__routes_find(c, stage.rank, s ? &as_first : how, routes);
        fn(user, &stage, routes);
        hd__routes_free(&more);
    }
    hd__routes_free(&first);
}

/* Stages with the same groups as the previous one are skipped. */
static void print_stage(void *user, const struct stage *stage, const struct hd__routes *routes)
{
    struct hd__text *before = user, text = {0};
    hd__routes_line(routes, &text);
    if (text.at && (!before->at || strcmp(before->at, text.at))) {
        if (stage->c->n_stages > 1)
            printf("groups, from stage %d: %s\n", stage->number, text.at);
        else
            printf("groups: %s\n", text.at);
    }
    hd__text_free(before);
    *before = text;
}

static void add_stage(void *user, const struct stage *stage, const struct hd__routes *routes)
{
    json_t *groups = hd__routes_json(routes), *group;
    size_t i;
    json_array_foreach(groups, i, group)
    {
        json_object_set_new(group, "stage", json_integer(stage->number));
        json_object_set_new(group, "rank", json_integer(stage->rank));
    }
    json_array_extend(user, groups);
    json_decref(groups);
}

/* The claims that hd__verify has proved of every rank's program. */
static const struct {
    const char *claim, *more; /* more: with -v */
} claims[] = {
    {"tensors: defined before use, not used after release",
     "collectives, sends, receives and copies are waited for, once, before anything touches their buffers"},
    {"memory: no two live temporaries overlap, nor do persistent buffers or arenas", NULL},
    {"dtypes: read as they were written; weights, gradients, states and the wire as `precision` says",
     "collectives and messages have one dtype on all sides; outputs have that of the op table"},
    {"placements: sharded and partial as the ops' rules say; the members of a group hold consecutive pieces",
     "the pieces of the first and the last rank are computed as they will run, slices and ring keys too"},
    {"values: every instruction computes what the model says, from the operands and the micro-batch that it says",
     "the model: one micro-batch as placed on the mesh, before recomputation, ring attention, pipelines, strategies, "
     "fusion and scheduling; gradients of ops and the op table are taken as given: --numerics runs them"},
    {"gradients: every micro-batch is fed and added once, into zeroed sums; reduced once over each axis they are "
     "partial on",
     NULL},
    {"loss: the mean over the tokens of a step, reduced once; its gradient has the same factor, and the loss scale",
     NULL},
    {"gradient norm: zeroed, every parameter counted once, reduced once", NULL},
    {"update: every parameter once a step, by the optimizer's rule, with its own weight decay",
     "the copies that the model reads are refreshed; what was changed in a copy of offloaded state is written back"},
};

static void print_text(const struct hd__compiled *c, const struct tally *t, const struct hd__routes_options *how,
                       int verbose)
{
    struct hd__text groups = {0};
    char arena[32];
    printf("%d rank%s, %d program%s of %llu instructions; compiled in %.3f s, proved in %.3f s\n", c->mesh.ranks,
           c->mesh.ranks > 1 ? "s" : "", c->n_stages, c->n_stages > 1 ? "s" : "", (unsigned long long)t->instructions,
           c->seconds, t->seconds);
    puts("proved on every rank:");
    for (size_t n = 0; n < HD__COUNT(claims); n++) {
        printf("  %s\n", claims[n].claim);
        if (verbose && claims[n].more)
            printf("    %s\n", claims[n].more);
    }
    print_local_sgd(c->stage[0]);
    puts("proved across ranks:");
    printf("  %llu collectives and %llu sends of a step and an evaluation match: same order, operation, size and dtype "
           "on every member\n",
           (unsigned long long)t->collectives, (unsigned long long)t->messages);
    puts("  no cyclic wait, even if every send blocks until it is received: the job cannot deadlock by mismatch");
    each_stage(c, how, print_stage, &groups);
    hd__text_free(&groups);
    printf("arena: %s a rank (%lld bytes)\n", hd__bytes_text((uint64_t)t->arena, arena), (long long)t->arena);
}

static void print_json(const struct hd__compiled *c, const struct tally *t, const struct hd__routes_options *how,
                       const struct hd__numerics *n)
{
    json_t *groups = json_array();
    json_t *o = json_pack("{s:b,s:i,s:i,s:I,s:I,s:I,s:I,s:f,s:f}", "ok", 1, "ranks", c->mesh.ranks, "programs",
                          c->n_stages, "instructions", (json_int_t)t->instructions, "collectives",
                          (json_int_t)t->collectives, "messages", (json_int_t)t->messages, "arena_bytes",
                          (json_int_t)t->arena, "compile_s", c->seconds, "proof_s", t->seconds);
    each_stage(c, how, add_stage, groups);
    json_object_set_new(o, "groups", groups);
    if (n)
        json_object_set_new(o, "numerics",
                            json_pack("{s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:s}", "ranks", n->ranks, "steps", n->steps,
                                      "loss", n->loss, "norm", n->norm, "gradient", n->gradient, "parameter",
                                      n->parameter, "average", n->average, "evaluation", n->evaluation, "limit",
                                      n->limit, "instead", n->instead));
    hd__cli_print_json(o, JSON_INDENT(1));
}

static void print_numerics(const struct hd__numerics *n)
{
    const struct {
        const char *what;
        double is;
    } rows[] = {{"loss", n->loss},          {"gradient norm", n->norm},
                {"gradients", n->gradient}, {"parameters", n->parameter},
                {"averages", n->average},   {"loss of an evaluation", n->evaluation}};
    printf("emulated %d steps of %d ranks in fp64 at the planned offsets, with events in random order, against one "
           "rank:\n",
           n->steps, n->ranks);
    if (n->instead[0])
        printf("  not as the job has it, so that both can agree: %s\n", n->instead);
    printf("  largest differences:");
    for (size_t k = 0; k < HD__COUNT(rows); k++)
        if (rows[k].is >= 0)
            printf("%s %s %.1e", k ? "," : "", rows[k].what, rows[k].is);
    printf("\n  relative to the largest of each tensor; ");
    if (n->limit > 0)
        printf("at most %g may be\n", n->limit);
    else
        printf("deterministic: exact must have the same bits, but for the evaluation: %g\n", HD__NUMERICS_LIMIT);
}

static int run(int argc, char **argv)
{
    int json = 0, numerics = 0, verbose = 0, code;
    const char *machine_text = NULL;
    const struct hd__cli_flag flags[] = {{"--json", NULL, &json},
                                         {"--numerics", NULL, &numerics},
                                         {"-v", NULL, &verbose},
                                         {"--per-machine", &machine_text, NULL}};
    struct hd__routes_options how = {0};
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    struct hd_error err = HD_ERROR_INIT;
    struct tally tally = {0};
    hd__cli_keep_freed();
    struct hd__numerics found = {0};
    code = hd__cli_job_arguments(&hd__command_check, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (!code)
        code = hd__cli_load_job(&arguments, 0, &loaded);
    if (!code &&
        hd__cli_parse_per_machine(&hd__command_check, machine_text, loaded.compiled->mesh.ranks, &how.per_machine))
        code = HD__EXIT_REFUSED;
    if (!code && loaded.job->nodes_max > 1)
        code = hd__cli_check_transports(loaded.compiled, (int32_t)loaded.job->ranks_each);
    if (!code)
        hd__cli_print_warnings(&arguments, &loaded);
    if (!code)
        hd__warn_tp_span(loaded.compiled, how.per_machine);
    if (!code && prove(loaded.compiled, &tally, &err))
        code = HD__EXIT_FAILED;
    if (!code && !json)
        print_text(loaded.compiled, &tally, &how, verbose);
    if (!code && numerics &&
        hd__numerics_file(arguments.file, arguments.overrides, arguments.n_overrides, loaded.plugins, 3, 1, &found,
                          &err))
        code = hd__cli_print_error(&err, HD__EXIT_FAILED);
    if (!code && json)
        print_json(loaded.compiled, &tally, &how, numerics ? &found : NULL);
    else if (!code && numerics)
        print_numerics(&found);
    if (!code && numerics && found.failed[0]) {
        fprintf(stderr, "--numerics: %s\n", found.failed);
        code = HD__EXIT_FAILED;
    }
    hd__cli_unload_job(&loaded);
    return code;
}

const struct hd__command hd__command_check = {
    .name = "check",
    .usage = "JOB [key=value ...] [-v] [--numerics] [--per-machine N] [--json]",
    .summary = "prove that a job cannot deadlock",
    .help =
        "Builds every rank's program in this process and proves that they fit together: no devices, no data file and\n"
        "no other process are needed. Ranks that are alike are built once.\n\n"
        "  --numerics    also run steps of all ranks here, emulated with reference kernels in fp64, and compare "
        "losses,\n"
        "                gradients, parameters, averages and an evaluation with one rank: for small models, it is "
        "slow\n"
        "  -v            say more of what is proved, and of what is not\n"
        "  --per-machine N   how groups go, as if each machine had N ranks (default: all on one); see explain\n"
        "  --json        for machines: ok, ranks, programs, instructions, collectives, messages, arena_bytes,\n"
        "                compile_s, proof_s, groups\n",
    .example = "  heddle check examples/kjv.yaml launch.ranks=8 mesh.tp=2\n",
    .run = run,
};
