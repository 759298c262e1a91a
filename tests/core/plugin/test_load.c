/* The loader: what is accepted, and that every way to be unusable says exactly what is wrong. */
#include <check.h>
#include <fenv.h>
#include <locale.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/plugin/crash.h"
#include "core/plugin/plugin.h"
#include "tests/suite.h"
#include "tests/support/linked.h"

#define GOOD "fine"

static struct hd__plugins *registry;
static struct hd_error err;
static char folder[] = "/tmp/heddle-test-plugin-XXXXXX";

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    registry = hd__plugins_create(NULL);
    ck_assert_int_eq(hd__plugins_add_folder(registry, FAULTY, &err), HD_OK);
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void tear_down(void)
{
    char *command = hd__format("rm -r %s", folder);
    hd__plugins_destroy(registry);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

/* folder/name as a link to a plugin of the build tree. */
static void link_plugin(const char *from, const char *to)
{
    char *target = hd__format(FAULTY "/heddle-optim-%s.so", from), *path = hd__format("%s/%s", folder, to);
    ck_assert_int_eq(symlink(target, path), 0);
    free(target);
    free(path);
}

static void write_file(const char *name, const char *text)
{
    char *path = hd__format("%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    free(path);
}

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(err.message, part) != NULL, "'%s' is not in: %s", part, err.message);
}

static void assert_refused(const char *name, int32_t code, const char *part)
{
    const struct hd__component *c = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, name, &c, &err), code);
    ck_assert_ptr_null(c);
    assert_says(part);
}

/* ---- every fault */

static const struct {
    const char *name;
    const char *says; /* what must be in the message: the field, theirs and ours, or the fix */
} refusals[] = {
    {"magic", "wrong magic 68 65 61 64 6c 65 0a 1a, heddle's is 68 65 64 64 6c 65 0a 1a"},
    {"short-plugin", "struct hd_plugin is short: 16 bytes, ABI 1.0 has 56"},
    {"major", "speaks ABI major 2 (symbol heddle_plugin_v2), this heddle speaks 1"},
    {"minor", "built for ABI 1.9, this heddle has 1.2"},
    {"one-later", "built for ABI 1.3, this heddle has 1.2"},
    {"short-ops", "struct hd_optimizer_ops is short: 64 bytes, ABI 1.0 has 80"},
    {"slot", "plugin optim-slot: slot 'learning_rate' is missing: it is mandatory in struct hd_optimizer_ops"},
    {"no-step", "both slots 'emit' and 'step' are missing"},
    {"states", "n_states is above 4"},
    {"state-path", "state_names has a name with '/' or '.'"},
    {"state-twice", "state_names has a name twice"},
    {"kind", "wrong kind: the file's name promises optim-kind, but it offers ckpt-kind"},
    {"no-kind", "struct hd_component.kind is 55, which is no HD_KIND_...: set it"},
    {"renamed", "wrong name: the file's name promises optim-renamed, but it offers optim-other"},
    {"component-twice", "duplicate name: two of its components are called optim-component-twice"},
    {"no-component", "it offers no component"},
    {"short-component", "struct hd_component is short: 24 bytes, ABI 1.0 has 88"},
    {"short-option", "struct hd_option is short: 40 bytes, ABI 1.0 has 88"},
    {"no-ops", "struct hd_component.ops is NULL"},
    {"caps", "struct hd_component.caps has bit 51"},
    {"ops-caps", "struct hd_optimizer_ops.caps has bit 63"},
    {"no-version", "struct hd_plugin.version is NULL"},
    {"no-summary", "struct hd_component.summary is NULL"},
    {"option-offset",
     "its table of options is wrong: option count: 8 bytes at offset 16 do not fit settings of 16 bytes"},
    {"option-twice", "its table of options is wrong: two options are called lr"},
    {"option-default", "its table of options is wrong: the default of option count: "},
    {"option-help", "option count has no help"},
    {"option-lost", "option count: its needs is 'stge=3', and the table has no stge: name one of it, a job's key"},
    {"option-needs",
     "option count: its needs is 'lr=1&count': KEY=VALUE|VALUE or KEY!=VALUE is wanted, several joined by &"},
    {"option-word", "option count: its needs is 'lr=1|': "},
    {"option-key", "option count: its needs is 'Lr!=1': "},
    {"option-flags", "option count has the unknown flag 0x100000"},
    {"alias-name", "alias 'Grand': a name has lower-case letters, digits, _ and -"},
    {"alias-summary", "alias nickname has no summary"},
    {"alias-own", "two of its names are alias-own"},
    {"alias-twice", "two of its names are nickname"},
    {"alias-option", "the preset of alias nickname: there is no option rate"},
    {"alias-value", "the preset of alias nickname: 'fast' is not a number"},
    {"alias-words", "the preset of alias nickname: 'lr' is no mapping"},
    {"alias-null", "aliases is NULL, but n_aliases is 2"},
    {"alias-short", "struct hd_alias is short: 8 bytes, ABI 1.0 has 24"},
    {"no-symbol", "is not a heddle plugin: it has no symbol heddle_plugin_v1"},
    {"null", "heddle_plugin_v1() returned NULL: return the descriptor"},
    {"library", "needs the library libheddle-absent.so.7, which is not on this machine"},
    {"undefined", "uses the symbol a_function_that_nobody_has, which neither it nor its libraries define"},
};

START_TEST(every_fault_has_its_own_message)
{
    char *path = hd__format(FAULTY "/heddle-optim-%s.so", refusals[_i].name);
    assert_refused(refusals[_i].name, HD_E_UNSUPPORTED, refusals[_i].says);
    assert_says(path);
    for (size_t i = 0; i < HD__COUNT(refusals); i++)
        if ((int)i != _i)
            ck_assert_msg(!strstr(err.message, refusals[i].says), "two faults read alike: %s", err.message);
    free(path);
}
END_TEST

/* Which ld.so would map, and end by a bus error. */
START_TEST(a_file_that_was_cut)
{
    char *command = hd__format("head -c 9000 " FAULTY "/heddle-optim-fine.so > %s/heddle-optim-cut.so", folder);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    assert_refused("cut", HD_E_UNSUPPORTED, "heddle-optim-cut.so is cut: it has 9000 bytes, of ");
    free(command);
}
END_TEST

/* A constructor's changes of the whole process are put back. */
START_TEST(the_process_stays_as_it_is)
{
    const struct hd__component *c = NULL;
    volatile float least = 1e-39F;
    mode_t mask = umask(027);
    char *locale = hd__strdup(setlocale(LC_ALL, NULL));
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "leaves", &c, &err), HD_OK);
    ck_assert_uint_eq(umask(mask), 027);
    ck_assert_str_eq(setlocale(LC_ALL, NULL), locale);
    ck_assert_int_eq(fegetround(), FE_TONEAREST);
    ck_assert(least * 0.5F != 0);
    free(locale);
}
END_TEST

START_TEST(not_an_object_file)
{
    write_file("heddle-optim-text.so", "this is no shared object\n");
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    assert_refused("text", HD_E_UNSUPPORTED, "cannot be loaded");
}
END_TEST

/* A listing has it, so a search has to find it. */
START_TEST(a_link_to_nothing)
{
    link_plugin("of-no-file", "heddle-optim-astray.so");
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    assert_refused("astray", HD_E_UNSUPPORTED, "heddle-optim-astray.so cannot be loaded: ");
}
END_TEST

START_TEST(absent_file_suggests_the_nearest)
{
    assert_refused("fin", HD_E_NOTFOUND, "there is no plugin optim-fin: did you mean optim-fine?");
    assert_says("looked for heddle-optim-fin.so in " FAULTY);
    assert_refused("../x", HD_E_INVALID, "'../x' is not a plugin's name");
}
END_TEST

START_TEST(not_built_says_why)
{
    write_file("skipped-plugins.txt", "comm-weft: libweft is missing\noptim-warp: needs a loom\n");
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    assert_refused("warp", HD_E_NOTFOUND, "plugin optim-warp was not built: needs a loom");
}
END_TEST

START_TEST(duplicate_names_both_paths)
{
    char *path = hd__format("%s/heddle-optim-fine.so", folder);
    link_plugin("magic", "heddle-optim-fine.so"); /* another file under the same name */
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    assert_refused(GOOD, HD_E_INVALID,
                   "duplicate name: plugin optim-fine is both " FAULTY "/heddle-optim-fine.so and ");
    assert_says(path);
    free(path);
}
END_TEST

START_TEST(the_same_file_twice_is_no_duplicate)
{
    const struct hd__component *c = NULL;
    link_plugin("fine", "heddle-optim-fine.so");
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, GOOD, &c, &err), HD_OK);
}
END_TEST

/* ---- what is accepted */

START_TEST(good_plugin_is_normalised)
{
    const struct hd__component *c = NULL, *again = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, GOOD, &c, &err), HD_OK);
    ck_assert_str_eq(c->label, "optim-fine");
    ck_assert_str_eq(c->version, "1.2.3");
    ck_assert_str_eq(c->path, FAULTY "/heddle-optim-fine.so");
    ck_assert_uint_eq(c->settings_size, 16);
    ck_assert_uint_eq(c->n_options, 1);
    ck_assert_str_eq(c->options[0].name, "lr");
    ck_assert_ptr_nonnull(c->ops.optimizer.step);
    ck_assert_ptr_null(c->ops.optimizer.emit);
    ck_assert_int_eq(hd__plugin_probe(registry, c, &err), HD_OK);
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, GOOD, &again, &err), HD_OK);
    ck_assert_ptr_eq(c, again);
}
END_TEST

/* Built with headers of 1.0: usable, and the core knows which it was. */
START_TEST(an_older_minor_is_accepted)
{
    const struct hd__component *c = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "older", &c, &err), HD_OK);
    ck_assert_uint_eq(c->abi_minor, 0);
    ck_assert_uint_gt(HD_ABI_MINOR, 0);
    ck_assert_int_eq(hd__plugin_probe(registry, c, &err), HD_OK);
}
END_TEST

/* A table that is longer than ours: what we do not know is not copied, and nothing behind our table is
 * touched. */
START_TEST(longer_table_is_cut)
{
    const struct hd__component *c = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "later", &c, &err), HD_OK);
    ck_assert_uint_eq(c->ops.optimizer.struct_size, sizeof(struct hd_optimizer_ops));
    const char *rest = (const char *)&c->ops + sizeof(struct hd_optimizer_ops);
    for (size_t i = 0; i < sizeof c->ops - sizeof(struct hd_optimizer_ops); i++)
        ck_assert_int_eq(rest[i], 0);
}
END_TEST

START_TEST(a_folder_a_plugin)
{
    const struct hd__component *c = NULL;
    struct hd__plugins *other = hd__plugins_create(NULL);
    char *nested = hd__format("%s/optim-fine", folder);
    ck_assert_int_eq(mkdir(nested, 0777), 0);
    link_plugin("fine", "optim-fine/heddle-optim-fine.so");
    ck_assert_int_eq(hd__plugins_add_folder(other, folder, &err), HD_OK);
    ck_assert_int_eq(hd__plugin_find(other, HD_KIND_OPTIMIZER, GOOD, &c, &err), HD_OK);
    hd__plugins_destroy(other);
    free(nested);
}
END_TEST

START_TEST(folder_that_is_none)
{
    ck_assert_int_eq(hd__plugins_add_folder(registry, "/no/such/folder", &err), HD_E_NOTFOUND);
    assert_says("plugins.path: '/no/such/folder' is not a folder");
}
END_TEST

START_TEST(environment)
{
    struct hd__plugins *other = hd__plugins_create(NULL);
    const struct hd__component *c = NULL;
    char *list = hd__format(":%s:" FAULTY, folder);
    setenv("HEDDLE_PLUGIN_PATH", list, 1);
    ck_assert_int_eq(hd__plugins_add_default_folders(other, &err), HD_OK);
    ck_assert_int_eq(hd__plugin_find(other, HD_KIND_OPTIMIZER, GOOD, &c, &err), HD_OK);
    setenv("HEDDLE_PLUGIN_PATH", "/no/such/folder", 1);
    ck_assert_int_eq(hd__plugins_add_default_folders(other, &err), HD_E_NOTFOUND);
    assert_says("HEDDLE_PLUGIN_PATH: '/no/such/folder' is not a folder");
    hd__plugins_destroy(other);
    free(list);
}
END_TEST

START_TEST(probe_that_refuses)
{
    const struct hd__component *c = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "probe", &c, &err), HD_OK);
    ck_assert_int_eq(hd__plugin_probe(registry, c, &err), HD_E_UNSUPPORTED);
    ck_assert_str_eq(err.message, "plugin optim-probe cannot be used on this machine: no unicorn in slot 7");
}
END_TEST

/* ---- what does not return */

START_TEST(a_call_that_does_not_return_is_named)
{
    static const struct {
        const char *file, *says;
    } all[] = {{"constructor", "error: a constructor of %s/heddle-optim-hangs.so does not return: "},
               {"entry", "error: heddle_plugin_v1() of %s/heddle-optim-hangs.so does not return: "},
               {"probe", "error: the probe of %s/heddle-optim-hangs.so does not return: "}};
    char *target = hd__format(FAULTY "/hangs-%s.so", all[_i].file),
         *path = hd__format("%s/heddle-optim-hangs.so", folder);
    char *said = hd__format("%s/said", folder), *wanted = hd__format(all[_i].says, folder), is[512] = "";
    int status;
    ck_assert_int_eq(symlink(target, path), 0);
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    pid_t pid = fork();
    if (!pid) {
        const struct hd__component *c = NULL;
        ck_assert_ptr_nonnull(freopen(said, "w", stderr));
        hd__crash_set_patience(1);
        if (!hd__plugin_find(registry, HD_KIND_OPTIMIZER, "hangs", &c, &err))
            hd__plugin_probe(registry, c, &err);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    FILE *file = fopen(said, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(is, sizeof is, file));
    fclose(file);
    ck_assert_msg(!strncmp(is, wanted, strlen(wanted)), "%s", is);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    free(target);
    free(path);
    free(said);
    free(wanted);
}
END_TEST

/* ---- aliases */

START_TEST(an_alias_finds_its_component)
{
    const struct hd__component *c = NULL, *again = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "handle", &c, &err), HD_OK);
    ck_assert_str_eq(c->label, "optim-named");
    ck_assert_uint_eq(c->n_aliases, 2);
    ck_assert_str_eq(hd__plugin_alias(c, "nickname")->preset, "{lr: 0.25}");
    ck_assert_ptr_null(hd__plugin_alias(c, "handle")->preset);
    ck_assert_ptr_null(hd__plugin_alias(c, "named"));
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "named", &again, &err), HD_OK);
    ck_assert_ptr_eq(c, again);
}
END_TEST

START_TEST(an_alias_is_of_one_kind)
{
    const struct hd__component *c = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_STRATEGY, "handle", &c, &err), HD_E_NOTFOUND);
    assert_says("there is no plugin strategy-handle; there are ");
}
END_TEST

START_TEST(two_with_one_alias)
{
    assert_refused("nickname", HD_E_INVALID, "nickname is an alias of both optim-named and optim-rival");
}
END_TEST

START_TEST(an_alias_is_suggested)
{
    assert_refused("hadnle", HD_E_NOTFOUND, "there is no plugin optim-hadnle: did you mean optim-handle?");
    assert_refused("HANDLE", HD_E_NOTFOUND, "did you mean optim-handle?");
}
END_TEST

/* optim-rival says that it is called fine, too. */
START_TEST(own_names_win_over_aliases)
{
    const struct hd__component *c = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "rival", &c, &err), HD_OK);
    ck_assert_ptr_nonnull(hd__plugin_alias(c, "fine"));
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "fine", &c, &err), HD_OK);
    ck_assert_str_eq(c->label, "optim-fine");
}
END_TEST

START_TEST(a_component_from_before_aliases)
{
    const struct hd__component *c = NULL;
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_OPTIMIZER, "old", &c, &err), HD_OK);
    ck_assert_uint_eq(c->n_aliases, 0);
    ck_assert_ptr_null(c->aliases);
}
END_TEST

/* ---- hooks: what may be left out, but not all of it */

static int32_t hook_open(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                         struct hd_hook **hook, struct hd_error *e)
{
    (void)host, (void)settings, (void)place, (void)hook;
    return hd_fail(e, HD_E_UNSUPPORTED, "never opened");
}

static void hook_close(struct hd_hook *hook)
{
    (void)hook;
}

static struct hd_hook_ops hook_ops = {.struct_size = sizeof hook_ops, .open = hook_open, .close = hook_close};
static const struct hd_component hook_component = {.struct_size = sizeof hook_component,
                                                   .kind = HD_KIND_HOOK,
                                                   .name = "blind",
                                                   .summary = "sees nothing",
                                                   .ops = &hook_ops};
static const struct hd_component *const hook_components[] = {&hook_component, NULL};
static const struct hd_plugin hook_plugin = {.magic = HD_PLUGIN_MAGIC,
                                             .struct_size = sizeof hook_plugin,
                                             .name = "hook-blind",
                                             .version = "1",
                                             .licence = "Apache-2.0",
                                             .components = hook_components};

static const struct hd_plugin *hook_entry(void)
{
    return &hook_plugin;
}

START_TEST(hooks_see_something)
{
    const struct hd__component *c = NULL;
    ck_assert_int_eq(add_linked(registry, hook_entry, &err), HD_E_UNSUPPORTED);
    assert_says("plugin hook-blind: the slots 'group', 'begin', 'end', 'progress' and 'leave' are missing");
    hook_ops.leave = hook_close;
    hook_ops.close = NULL;
    ck_assert_int_eq(add_linked(registry, hook_entry, &err), HD_E_UNSUPPORTED);
    assert_says("slot 'close' is missing: it is mandatory in struct hd_hook_ops");
    hook_ops.close = hook_close;
    ck_assert_msg(!add_linked(registry, hook_entry, &err), "%s", err.message);
    ck_assert_int_eq(hd__plugin_find(registry, HD_KIND_HOOK, "blind", &c, &err), HD_OK);
    ck_assert_ptr_null(c->ops.hook.begin);
}
END_TEST

/* ---- the list */

static const struct hd__plugin_entry *entry_of(const struct hd__plugin_entry *entries, size_t n, const char *label)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(entries[i].label, label) == 0)
            return &entries[i];
    ck_abort_msg("%s is not in the list", label);
}

START_TEST(scan_lists_all_with_reasons)
{
    const struct hd__plugin_entry *e, *entries;
    size_t n;
    write_file("skipped-plugins.txt", "comm-weft: libweft is missing\noptim-fine: there, though\n");
    write_file("heddle-wheel-one.so", "");
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    hd__plugin_scan(registry, &entries, &n);
    for (size_t i = 1; i < n; i++)
        ck_assert_int_le(entries[i - 1].kind, entries[i].kind);
    for (size_t i = 0; i < HD__COUNT(refusals); i++) {
        char *label = hd__format("optim-%s", refusals[i].name);
        e = entry_of(entries, n, label);
        ck_assert_uint_eq(e->usable, 0);
        ck_assert_ptr_nonnull(strstr(e->reason, refusals[i].says));
        free(label);
    }
    e = entry_of(entries, n, "optim-fine");
    ck_assert_uint_eq(e->usable, 1);
    ck_assert_ptr_null(e->reason);
    e = entry_of(entries, n, "optim-probe");
    ck_assert_uint_eq(e->usable, 0);
    ck_assert_ptr_nonnull(e->component);
    ck_assert_ptr_nonnull(strstr(e->reason, "no unicorn in slot 7"));
    e = entry_of(entries, n, "comm-weft");
    ck_assert_str_eq(e->reason, "not built: libweft is missing");
    ck_assert_ptr_null(e->path);
    ck_assert_ptr_nonnull(strstr(entry_of(entries, n, "wheel-one")->reason, "no known kind"));
}
END_TEST

START_TEST(kind_of_label)
{
    const char *name = NULL;
    ck_assert_uint_eq(hd__plugin_kind_of_label("comm-shm", &name), HD_KIND_COMM);
    ck_assert_str_eq(name, "shm");
    ck_assert_uint_eq(hd__plugin_kind_of_label("hook-check", &name), HD_KIND_HOOK);
    ck_assert_str_eq(name, "check");
    ck_assert_uint_eq(hd__plugin_kind_of_label("comm", NULL), 0);
    ck_assert_uint_eq(hd__plugin_kind_of_label("comm-", NULL), 0);
    ck_assert_uint_eq(hd__plugin_kind_of_label("commander-x", NULL), 0);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("load");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_loop_test(c, every_fault_has_its_own_message, 0, (int)HD__COUNT(refusals));
    tcase_add_test(c, not_an_object_file);
    tcase_add_test(c, a_file_that_was_cut);
    tcase_add_test(c, the_process_stays_as_it_is);
    tcase_add_test(c, a_link_to_nothing);
    tcase_add_test(c, absent_file_suggests_the_nearest);
    tcase_add_test(c, not_built_says_why);
    tcase_add_test(c, duplicate_names_both_paths);
    tcase_add_test(c, the_same_file_twice_is_no_duplicate);
    tcase_add_test(c, good_plugin_is_normalised);
    tcase_add_test(c, longer_table_is_cut);
    tcase_add_test(c, an_older_minor_is_accepted);
    tcase_add_test(c, a_folder_a_plugin);
    tcase_add_test(c, folder_that_is_none);
    tcase_add_test(c, environment);
    tcase_add_test(c, probe_that_refuses);
    tcase_add_loop_test(c, a_call_that_does_not_return_is_named, 0, 3);
    tcase_add_test(c, an_alias_finds_its_component);
    tcase_add_test(c, an_alias_is_of_one_kind);
    tcase_add_test(c, two_with_one_alias);
    tcase_add_test(c, an_alias_is_suggested);
    tcase_add_test(c, own_names_win_over_aliases);
    tcase_add_test(c, a_component_from_before_aliases);
    tcase_add_test(c, hooks_see_something);
    tcase_add_test(c, scan_lists_all_with_reasons);
    tcase_add_test(c, kind_of_label);
    return suite_run_case("load", c);
}
