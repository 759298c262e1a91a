/* Console lines of a run: its plan at the start, its summary at the end. */
#include <stdio.h>

#include "core/program/memory_kinds.h"
#include "service/train/loop/internal.h"
#include "service/train/train.h"

/* "139,584" */
static const char *count_text(int64_t n, char out[32])
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%" PRId64, n), at = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

static int warn_cut(struct hd__job *job, const char *which, uint64_t documents)
{
    char number[32];
    const struct hd__job_value *loss = hd__job_value_get(job, "data.loss");
    const int warns = documents && loss && !strcmp(loss->text, "completion");
    if (warns)
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.seq_len: %s %s documents are longer and cut: completions do not see their prompts: raise it",
                hd__job_where(job, "data.seq_len"), which, count_text((int64_t)documents, number));
    return warns;
}

static void print_packing(const struct hd__data *d, struct hd__job *job)
{
    char pieces[32], sequences[32];
    int64_t n = (int64_t)hd__data_sequences(d), seq_len = job->seq_len;
    uint64_t cut, whole, all = hd__data_pieces(d, &cut, &whole);
    printf("packed %s documents or pieces of them into %s sequences of %" PRId64
           ": %.2f%% of these are tokens, the rest is padding\n",
           count_text((int64_t)all, pieces), count_text(n, sequences), seq_len,
           100 * (double)hd__data_tokens(d) / ((double)n * (double)seq_len));
    if (cut && (whole || !warn_cut(job, "all", cut)))
        printf("%s of the documents %s longer and cut: what is behind a cut does not see its prompt, or what else is "
               "before it\n",
               count_text((int64_t)cut, pieces), cut > 1 ? "are" : "is");
}

static void print_data(const struct hd__data *d, const struct hd__job *job)
{
    struct hd__data_repeats x[6];
    uint32_t n = hd__data_most_repeated(d, (double)(job->batch * job->steps), x, 5);
    char tokens[32];
    printf("data: %s tokens", count_text((int64_t)hd__data_tokens(d), tokens));
    for (uint32_t i = 0; i < n && n > 1; i++)
        printf("%s %s %.3g %% (seen %.3g times)", i ? "," : ":", job->train.at[x[i].source].path, 100 * x[i].share,
               x[i].times);
    if (n > 1 && job->train.count > n)
        printf(", %" PRIu64 " more less often", job->train.count - n);
    printf(n == 1 ? ", seen %.3g times in all steps\n" : "\n", x->times);
}

/* Data, memory, transports and the place of a run. */
static void print_plan(const struct hd__train_loop *l, const struct hd__compiled *c)
{
    double peak = hd__loop_device_peak(l);
    char bytes[32];
    const struct hd__memory_use memory = hd__memory_use(l->p);
    const char *separator = "transports: ";
    print_data(hd__train_feed_data(l->s.train_feed), l->job);
    printf("arena %s a rank", hd__bytes_text((uint64_t)l->p->arena_bytes, bytes));
    for (uint32_t k = 0; k < HD__MEMORY_KINDS; k++)
        printf("%s%s %s", k ? ", " : ": ", hd__memory_kind_name(k), hd__bytes_text((uint64_t)memory.kind[k], bytes));
    if (peak > 0)
        printf("; peak of the device %.1f %s", peak / (peak < 1e12 ? 1e9 : 1e12), peak < 1e12 ? "GFLOP/s" : "TFLOP/s");
    printf("\n");
    if (hd__loop_plan())
        printf("planned by %s: %.4g ms a step\n", hd__loop_plan()->machine, 1e3 * hd__loop_plan()->step_s);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (c->mesh.size[a] > 1) {
            printf("%s%s %s", separator, hd__axis_name(a), l->job->comm_axis[a]->use);
            separator = ", ";
        }
    printf("%srun folder: %s\n", *separator == ',' ? "\n" : "", hd__job_folder(l->job));
}

void hd__loop_print_start(const struct hd__train_loop *l, const struct hd__compiled *c)
{
    const struct hd__train_loaded *loaded = hd__train_checkpointer_loaded(l->checkpointer);
    const char *separator = " (";
    int64_t tokens = l->job->batch * l->job->seq_len;
    char parameters[32], step[32], total[32];
    if (loaded->dir)
        printf("run %s, resuming from step %" PRId64 " %s %s%s: ", l->run, l->progress.step,
               loaded->in_memory ? "in" : "of", loaded->in_memory ? "memory" : loaded->dir, loaded->saved_on);
    else
        printf("run %s, from %s: ", l->run, c->info.weights ? c->info.weights : "scratch");
    printf("%s parameters, %s tokens a step, %s in %" PRId64 " steps",
           count_text(hd__compiled_parameter_count(c), parameters), count_text(tokens, step),
           count_text(tokens * l->job->steps, total), l->job->steps);
    if (l->job->epochs > 0)
        printf(", %g epoch%s of %s sequences", l->job->epochs, l->job->epochs == 1 ? "" : "s",
               count_text((int64_t)hd__data_sequences(hd__train_feed_data(l->s.train_feed)), step));
    printf("\n%d rank%s", c->mesh.ranks, c->mesh.ranks > 1 ? "s" : "");
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (c->mesh.size[a] > 1) {
            printf("%s%s %d", separator, hd__axis_name(a), c->mesh.size[a]);
            separator = ", ";
        }
    printf("%s, device %s, %s\n", *separator == ',' ? ")" : "", c->device_choice.component->name,
           hd_dtype_name(l->job->precision.compute));
    if (l->job->documents == HD__DOCUMENTS_PACK)
        print_packing(hd__train_feed_data(l->s.train_feed), l->job);
    else
        warn_cut(l->job, "the first", hd__data_all_longer(hd__train_feed_data(l->s.train_feed), 10000));
    print_plan(l, c);
    if (!l->checkpointer && !l->job->trace.ends)
        printf("nothing is saved: the job has no checkpoint section (`checkpoint: {}` is enough)\n");
    fflush(stdout);
}

void hd__loop_print_end(const struct hd__train_loop *l)
{
    char tokens[32], rate[32];
    if (l->trained_s <= 0)
        return;
    printf("trained to step %" PRId64 ": %s tokens in %.1f s, mean %s tokens/s", l->progress.step,
           count_text(l->trained_tokens, tokens), l->trained_s,
           count_text((int64_t)((double)l->trained_tokens / l->trained_s), rate));
    if (l->best_step)
        printf(", best val_loss %.4f at step %" PRId64, l->best_val_loss, l->best_step);
    printf("\n");
    double flops = hd__compiled_flops_per_token(l->s.compiled) * (double)l->trained_tokens;
    if (l->peak_flops > 0 && flops / l->trained_s > HD__MFU_DOUBTED * l->peak_flops)
        hd__log(HD_LOG_WARN, NULL, "%s", HD__MFU_WORDS);
}
